"""Writes of Spark to streams live here, and the rules by which every sink, that of databases too, writes each batch
once, with the traces of batches; not the data source that Spark calls first.
"""
