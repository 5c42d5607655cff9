"""What operators hold: its bytes are accounted, and above a budget it lies in files."""
