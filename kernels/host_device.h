// KV_HOST_DEVICE marks a body that a GPU kernel and the host share.
#pragma once

#if defined(__CUDACC__)
#define KV_HOST_DEVICE __host__ __device__
#else
#define KV_HOST_DEVICE
#endif
