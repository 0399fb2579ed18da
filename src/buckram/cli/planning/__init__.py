"""`buckram plan`: sizes of new clusters, the history of disk use, and the forecast of the time when disks are full."""
