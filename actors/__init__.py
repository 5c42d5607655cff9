"""The shells around the pure cores: hosts with threads and files, and the actors that put them on Ray."""
