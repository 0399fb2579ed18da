"""Reading streams: the reader and its batches across segments, history outside the cluster, cursors and lag."""
