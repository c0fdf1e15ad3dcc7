#include "kernels/launch.hpp"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "api/checks.hpp"
#include "attention/arguments.hpp"
#include "kernels/configs.hpp"
#include "kernels/kernel.hpp"
#include "kernels/plan.hpp"
#include "kernels/strided_copy.hpp"

namespace fa3::kernels {
namespace {

using std::string;
using std::to_string;

string version_text(int version) { return to_string(version / 1000) + "." + to_string(version % 1000 / 10); }

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the caller hears of it here; leave no trace for the next unrelated call
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    throw Error(FA3_NO_DEVICE, driver == 0 ? string("no NVIDIA driver is installed (libcuda.so.1 was not found)")
                                           : "the NVIDIA driver is too old: it supports CUDA " + version_text(driver) +
                                                 ", this build needs " + version_text(CUDART_VERSION));
  }
  if (error == cudaErrorNoDevice) throw Error(FA3_NO_DEVICE, "no CUDA device is visible to this process");
  throw Error(FA3_CUDA_ERROR, string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

template <int... rows>
constexpr auto kernels_of(std::integer_sequence<int, rows...>) {
  return std::array<ForwardKernel (*)(), sizeof...(rows)>{&forward_kernel_of_row<rows>...};
}
ForwardKernel kernel_of_row(int row) {
  static constexpr auto kernels = kernels_of(std::make_integer_sequence<int, forward_row_count>());
  return kernels[row]();
}

/// What the launcher needs to know of a device on which all kernels are loaded.
struct Device {
  int sm_count = 0;
  std::int64_t l2_bytes = 0;
};

Device prepare(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  api::check_capability(major, minor, properties.name);
  for (int row = 0; row < forward_row_count; ++row) {
    const ForwardKernel kernel = kernel_of_row(row);
    check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
          "cudaFuncSetAttribute");
  }
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, strided_copy_kernel()), "cudaFuncGetAttributes");
  return {attribute(cudaDevAttrMultiProcessorCount, device), attribute(cudaDevAttrL2CacheSize, device)};
}

/// The current device, prepared at its first use.
std::pair<int, Device> current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  static std::mutex mutex;
  static std::map<int, Device> prepared;
  const std::lock_guard lock(mutex);
  const auto found = prepared.find(device);
  if (found != prepared.end()) return *found;
  return *prepared.emplace(device, prepare(device)).first;
}

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

/// Tensor map over `tensor` with boxes of 64 features x box_rows rows; see hopper::TensorMap.
hopper::TensorMap encode(const char* name, const TensorRef& tensor, hopper::Element element, int box_rows) {
  hopper::TensorMap map{};
  if (tensor.empty()) return map;  // no keys: the kernel does not touch it
  const auto steps = [&](int i) { return tensor.shape[i] > 1 && tensor.stride[i] != 0; };
  map.head_step = steps(2);
  map.batch_step = steps(0);
  // Innermost first: feature, row, head, batch. A dimension without steps has extent 1 and a stride that is only formally needed.
  const cuuint64_t row_bytes = cuuint64_t(tensor.shape[3]) * 2;
  const auto stride_bytes = [&](int i) { return steps(i) ? cuuint64_t(tensor.stride[i]) * 2 : row_bytes; };
  const cuuint64_t extents[4] = {cuuint64_t(tensor.shape[3]), cuuint64_t(tensor.shape[1]), cuuint64_t(steps(2) ? tensor.shape[2] : 1),
                                 cuuint64_t(steps(0) ? tensor.shape[0] : 1)};
  const cuuint64_t strides[3] = {stride_bytes(1), stride_bytes(2), stride_bytes(0)};
  const cuuint32_t box[4] = {64, cuuint32_t(box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap encoded;
  const CUresult result = tensor_map_encoder()(
      &encoded, element == hopper::Element::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, tensor.data,
      extents, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(FA3_CUDA_ERROR, string(name) + ": cuTensorMapEncodeTiled failed with CUresult " + to_string(int(result)));
  static_assert(sizeof(encoded) == sizeof(map.opaque));
  std::memcpy(map.opaque, &encoded, sizeof(encoded));
  return map;
}

attention::Scale softmax_scale(float scale) {
  const float log2_e = 1.44269504088896f;
  if (scale == 0.0f) return {1.0f, 1.0f, 0.0f};
  const float scale_log2 = std::min(std::abs(scale) * log2_e, 0x1p126f);
  const float power = std::ldexp(1.0f, int(std::ceil(std::log2(scale_log2))));
  return {scale_log2, std::max(power, scale_log2), scale > 0 ? 1.0f : -1.0f};
}

attention::TileOrder tile_order(const ForwardProblem& problem, int tile_q, std::int64_t l2_bytes) {
  // Half of L2 for the section's K and V: the rest holds Q, O and what other CTAs have not let go of yet.
  const std::int64_t kv_bytes = std::max<std::int64_t>(1, problem.seqlen_k * (problem.d + problem.d_v) * 2);
  const std::int64_t kv_heads = std::max<std::int64_t>(1, l2_bytes / 2 / kv_bytes);
  const std::int64_t sequences = problem.heads * problem.batch;
  attention::TileOrder order;
  order.tile_q = tile_q;
  order.q_tiles = int((problem.seqlen_q + tile_q - 1) / tile_q);
  order.heads = int(problem.heads);
  order.sequences = int(sequences);
  order.section = int(std::min(sequences, kv_heads * problem.group()));
  return order;
}

void check_device_pointer(const char* name, const void* pointer, int device) {
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    throw Error(FA3_INVALID_ARGUMENT, string(name) + " is a host pointer; on cuda it must be device memory");
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device)
    throw Error(FA3_INVALID_ARGUMENT, string(name) + " is memory of CUDA device " + to_string(attributes.device) +
                                          ", but the current device is " + to_string(device));
}

void check_workspace(const void* workspace, std::size_t given, std::size_t needed) {
  if (workspace == nullptr)
    throw Error(FA3_WORKSPACE_TOO_SMALL, "workspace is null; " + to_string(needed) + " bytes are needed");
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    throw Error(FA3_WORKSPACE_TOO_SMALL, "workspace is not aligned to 256 bytes");
  if (given < needed)
    throw Error(FA3_WORKSPACE_TOO_SMALL, "workspace_bytes is " + to_string(given) + "; " + to_string(needed) + " are needed");
}

/// Copy between the caller's tensor and its packed twin in the workspace, in either direction.
StridedCopy copy_between(const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
  StridedCopy copy{static_cast<const std::uint16_t*>(from.data), static_cast<std::uint16_t*>(to.data), {}, {}, {}};
  for (int i = 0; i < 4; ++i) copy.extent[i] = packed.stride[i] == 0 ? 1 : packed.shape[i];
  for (int i = 0; i < 3; ++i) {
    copy.from_stride[i] = from.stride[i];
    copy.to_stride[i] = to.stride[i];
  }
  return copy;
}

}  // namespace

void check_device() { current_device(); }

void init(int device) {
  int previous = 0;
  check(cudaGetDevice(&previous), "cudaGetDevice");
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (device < 0 || device >= count)
    throw Error(FA3_INVALID_ARGUMENT,
                "cuda_device is " + to_string(device) + "; this process sees " + to_string(count) + " CUDA devices");
  check(cudaSetDevice(device), "cudaSetDevice");
  try {
    current_device();
    tensor_map_encoder();
  } catch (...) {
    cudaSetDevice(previous);
    throw;
  }
  check(cudaSetDevice(previous), "cudaSetDevice");
}

void forward(const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream) {
  ForwardPlan plan = plan_forward(problem);
  check_workspace(workspace, workspace_bytes, plan.workspace_bytes);
  const auto [device, device_info] = current_device();
  const std::pair<const char*, const void*> pointers[] = {{"q.data", problem.q.data}, {"k.data", problem.k.empty() ? nullptr : problem.k.data},
                                                          {"v.data", problem.v.empty() ? nullptr : problem.v.data},
                                                          {"o.data", problem.o.data}, {"lse", problem.lse}, {"workspace", workspace}};
  for (const auto& [name, pointer] : pointers) check_device_pointer(name, pointer, device);

  for (StagedTensor* staged : {&plan.q, &plan.k, &plan.v, &plan.o})
    if (staged->copied) staged->tensor.data = static_cast<unsigned char*>(workspace) + staged->offset;

  const ForwardConfig& config = forward_rows[plan.row].config;
  attention::ForwardArguments args{};
  args.q = encode("q", plan.q.tensor, config.element, config.tile_q);
  args.k = encode("k", plan.k.tensor, config.element, config.tile_kv);
  args.v = encode("v", plan.v.tensor, config.element, config.tile_kv);
  args.o = encode("o", plan.o.tensor, config.element, 16);
  args.lse = problem.lse;
  std::copy(problem.lse_stride.begin(), problem.lse_stride.end(), args.lse_stride);
  args.mask = {int(problem.seqlen_q), int(problem.seqlen_k), problem.causal};
  args.order = tile_order(problem, config.tile_q, device_info.l2_bytes);
  args.group = int(problem.group());
  args.scale = softmax_scale(problem.softmax_scale);
  args.next_tile = static_cast<unsigned*>(workspace);

  const auto copy = [&](const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
    check(cudaError_t(launch_strided_copy(copy_between(from, to, packed), stream)), "launch of strided_copy");
  };
  check(cudaMemsetAsync(args.next_tile, 0, sizeof(unsigned), stream), "cudaMemsetAsync");
  if (plan.q.copied) copy(problem.q, plan.q.tensor, plan.q.tensor);
  if (plan.k.copied) copy(problem.k, plan.k.tensor, plan.k.tensor);
  if (plan.v.copied) copy(problem.v, plan.v.tensor, plan.v.tensor);

  const ForwardKernel kernel = kernel_of_row(plan.row);
  void* arguments[] = {&args};
  const unsigned ctas = unsigned(std::min(args.order.count(), device_info.sm_count));
  check(cudaLaunchKernel(kernel.function, dim3(ctas), dim3(unsigned(kernel.threads)), arguments, std::size_t(kernel.shared_bytes), stream),
        "launch of the forward kernel");
  if (plan.o.copied) copy(plan.o.tensor, problem.o, plan.o.tensor);
}

}  // namespace fa3::kernels
