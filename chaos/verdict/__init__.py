"""What a run has to answer for: histories of the actors compared with what the cluster holds at the end."""
