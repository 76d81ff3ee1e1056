"""The gRPC service ``vllm.grpc.engine``, on the bridge, keys, limits and observers of HTTP; needs the extra grpc."""
