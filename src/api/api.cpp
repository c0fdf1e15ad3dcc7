// The C ABI. Every entry clears fa3_last_error, runs, and turns what was thrown into a status.
#include <new>
#include <string>
#include <system_error>

#include "api/checks.hpp"
#include "cpu/backward.hpp"
#include "cpu/forward.hpp"
#include "cpu/quantize.hpp"
#include "cpu/simd.hpp"
#include "fa3/fa3.h"
#include "kernels/backward_launch.hpp"
#include "kernels/configs.hpp"
#include "kernels/launch.hpp"
#include "kernels/plan.hpp"
#include "kernels/quantize_launch.hpp"
#include "source_hash.hpp"

namespace {

thread_local std::string last_error;

fa3_status fail(fa3_status code, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return code;
}

template <class F>
fa3_status guarded(F&& body) noexcept {
  last_error.clear();
  try {
    body();
    return FA3_OK;
  } catch (const fa3::Error& error) {
    return fail(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return fail(FA3_INTERNAL, "out of host memory");
  } catch (const std::exception& error) {
    return fail(FA3_INTERNAL, error.what());
  } catch (...) {
    return fail(FA3_INTERNAL, "unknown exception");
  }
}

}  // namespace

extern "C" {

fa3_status fa3_init(int cuda_device) {
  return guarded([&] { fa3::kernels::init(cuda_device); });
}

fa3_status fa3_device_available(int32_t device) {
  return guarded([&] {
    if (device == FA3_DEVICE_CPU) return;
    if (device != FA3_DEVICE_CUDA)
      throw fa3::Error(FA3_INVALID_ARGUMENT, "device is " + std::to_string(device) +
                                                 "; it must be FA3_DEVICE_CUDA (1) or FA3_DEVICE_CPU (2)");
    fa3::kernels::check_device();
  });
}

fa3_status fa3_forward_supported(const fa3_forward_params* params) {
  return guarded([&] {
    const fa3::ForwardProblem problem = fa3::api::check_forward(params);
    if (params->device == FA3_DEVICE_CUDA) fa3::kernels::plan_forward(problem);
  });
}

fa3_status fa3_forward_kernel(const fa3_forward_params* params, const char** name) {
  return guarded([&] {
    if (name == nullptr) throw fa3::Error(FA3_INVALID_ARGUMENT, "name is null");
    const fa3::ForwardProblem problem = fa3::api::check_forward(params);
    *name = params->device == FA3_DEVICE_CUDA ? fa3::kernels::forward_rows[fa3::kernels::plan_forward(problem).row].name
                                              : fa3::cpu::kernel_name();
  });
}

fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, size_t* bytes) {
  return guarded([&] {
    if (bytes == nullptr) throw fa3::Error(FA3_INVALID_ARGUMENT, "bytes is null");
    const fa3::ForwardProblem problem = fa3::api::check_forward(params);
    *bytes = params->device == FA3_DEVICE_CUDA ? fa3::kernels::plan_forward(problem).workspace_bytes : 0;
  });
}

fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream) {
  return guarded([&] {
    const fa3::ForwardProblem problem = fa3::api::check_forward(params);
    if (problem.o.empty()) return;
    if (params->device == FA3_DEVICE_CUDA)
      fa3::kernels::forward(problem, workspace, workspace_bytes, stream);
    else
      fa3::cpu::forward(problem);
  });
}

fa3_status fa3_backward_supported(const fa3_backward_params* params) {
  return guarded([&] {
    const fa3::BackwardProblem problem = fa3::api::check_backward(params);
    if (params->device == FA3_DEVICE_CUDA) fa3::kernels::plan_backward(problem);
  });
}

fa3_status fa3_backward_kernel(const fa3_backward_params* params, const char** name) {
  return guarded([&] {
    if (name == nullptr) throw fa3::Error(FA3_INVALID_ARGUMENT, "name is null");
    const fa3::BackwardProblem problem = fa3::api::check_backward(params);
    *name = params->device == FA3_DEVICE_CUDA
                ? fa3::kernels::backward_rows[fa3::kernels::plan_backward(problem).row].name
                : fa3::cpu::kernel_name();
  });
}

fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes) {
  return guarded([&] {
    if (bytes == nullptr) throw fa3::Error(FA3_INVALID_ARGUMENT, "bytes is null");
    const fa3::BackwardProblem problem = fa3::api::check_backward(params);
    *bytes = params->device == FA3_DEVICE_CUDA ? fa3::kernels::plan_backward(problem).workspace_bytes : 0;
  });
}

fa3_status fa3_backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream) {
  return guarded([&] {
    const fa3::BackwardProblem problem = fa3::api::check_backward(params);
    if (problem.dq.empty() && problem.dk.empty()) return;  // and so is dv
    if (params->device == FA3_DEVICE_CUDA)
      fa3::kernels::backward(problem, workspace, workspace_bytes, stream);
    else
      fa3::cpu::backward(problem);
  });
}

fa3_status fa3_quantize_supported(const fa3_quantize_params* params) {
  return guarded([&] {
    const fa3::QuantizeProblem problem = fa3::api::check_quantize(params);
    if (params->device == FA3_DEVICE_CUDA) fa3::kernels::plan_quantize(problem);
  });
}

fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes) {
  return guarded([&] {
    if (bytes == nullptr) throw fa3::Error(FA3_INVALID_ARGUMENT, "bytes is null");
    const fa3::QuantizeProblem problem = fa3::api::check_quantize(params);
    *bytes = params->device == FA3_DEVICE_CUDA ? fa3::kernels::plan_quantize(problem).workspace_bytes : 0;
  });
}

fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream) {
  return guarded([&] {
    const fa3::QuantizeProblem problem = fa3::api::check_quantize(params);
    if (problem.y.empty()) return;
    if (params->device == FA3_DEVICE_CUDA)
      fa3::kernels::quantize(problem, workspace, workspace_bytes, stream);
    else
      fa3::cpu::quantize(problem);
  });
}

const char* fa3_status_string(fa3_status status) {
  switch (status) {
    case FA3_OK: return "ok";
    case FA3_INVALID_ARGUMENT: return "invalid argument";
    case FA3_NOT_SUPPORTED: return "not supported";
    case FA3_WORKSPACE_TOO_SMALL: return "workspace too small";
    case FA3_NO_DEVICE: return "no usable device";
    case FA3_CUDA_ERROR: return "CUDA error";
    case FA3_INTERNAL: return "internal error";
  }
  return "unknown status";
}

const char* fa3_last_error(void) { return last_error.c_str(); }

int fa3_version(void) { return 10000 * FA3_VERSION_MAJOR + 100 * FA3_VERSION_MINOR + FA3_VERSION_PATCH; }

const char* fa3_source_hash(void) { return FA3_SOURCE_HASH; }

}  // extern "C"
