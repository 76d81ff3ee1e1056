"""Scale out: a gateway that chooses among replicas of `infeng serve`, which Ray Serve places, heals and counts."""
