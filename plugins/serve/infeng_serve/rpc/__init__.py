"""The service ``vllm.grpc.engine``, by the bridge, keys, limits and observers of HTTP; needs the extra grpc."""
