"""External data are what leaves a stream for locations outside the cluster or comes from there: manifests of
history, exports, imports of files and of Kafka's topics; moving the bytes is in streams/maintain.
"""
