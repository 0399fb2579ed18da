"""What is known about checkpoints of streaming queries lives here: their contents, whether they are whole, forks of
them, and where they are; Spark itself writes them, through webhdfs.
"""
