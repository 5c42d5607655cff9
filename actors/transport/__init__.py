"""Transports: how frames and grants travel between processes. ``protocol`` says what each must keep."""
