#include "kernels/tensor_map.hpp"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "error.hpp"
#include "kernels/cuda_check.hpp"

namespace fa3::kernels {
namespace {

/// cuTensorMapEncodeTiled, looked up so that the library loads where there is no libcuda.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess)
      throw Error(FA3_NO_DEVICE, "the NVIDIA driver is too old: it has no cuTensorMapEncodeTiled (CUDA 12.0)");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

}  // namespace

void find_tensor_map_encoder() { tensor_map_encoder(); }

hopper::TensorMap encode_tensor_map(const hopper::TensorMapSpec& spec) {
  hopper::TensorMap map{};
  const cuuint32_t box[4] = {spec.box_features, spec.box_rows, 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = spec.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : spec.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                : CU_TENSOR_MAP_SWIZZLE_32B;
  cuuint64_t extents[4], strides[3];
  std::copy(spec.extent, spec.extent + 4, extents);
  std::copy(spec.stride_bytes, spec.stride_bytes + 3, strides);
  CUtensorMap encoded;
  const CUresult result = tensor_map_encoder()(
      &encoded,
      spec.element == hopper::Element::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
      spec.data, extents, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(FA3_CUDA_ERROR, std::string(spec.name) + ": cuTensorMapEncodeTiled failed with CUresult " +
                                    std::to_string(int(result)));
  static_assert(sizeof(encoded) == sizeof(map.opaque));
  std::memcpy(map.opaque, &encoded, sizeof(encoded));
  return map;
}

}  // namespace fa3::kernels
