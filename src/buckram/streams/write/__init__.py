"""Writing streams: the writer and its lease, appends and batches, segments and their rolls, and bulk steps."""
