"""Ready-made jobs, the command line and the embedded runner. Ray and Spark are imported inside functions only."""
