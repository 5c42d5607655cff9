"""The shells around the pure cores: hosts with threads and files, and the actors that put them on Ray."""

from .process.lean_start import is_worker, start_lean

if is_worker():
    start_lean()
