"""Sources: ordered lists of splits, and the reader that turns them into batches."""
