#include "daemon/device/cuda_api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace kvartal::device {
namespace {

// The oldest driver with cuGetProcAddress as it is called here.
constexpr char kOldestDriver[] = "CUDA 12.0 (driver 525)";
// What a library that simulates GPUs exports, and no driver of NVIDIA's.
constexpr char kSimulatedMark[] = "kvartalSimulatedGpus";

struct Advice {
  absl::StatusCode code;
  const char* what_to_do;  // "" where the call's name and the error's say all
};

Advice AdviceFor(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return {absl::StatusCode::kResourceExhausted,
              "the GPU has not that much memory left: lower hbmPerGpu, or what the engines on it may take"};
    case CUDA_ERROR_NO_DEVICE:
      return {absl::StatusCode::kNotFound,
              "no GPU is visible here: in a pod, use the runtime class nvidia and set NVIDIA_VISIBLE_DEVICES"};
    case CUDA_ERROR_INVALID_DEVICE:
      return {absl::StatusCode::kNotFound,
              "this process does not see that GPU: both sides of a handle need the same GPU (compare UUIDs)"};
    case CUDA_ERROR_INVALID_CONTEXT:
      return {absl::StatusCode::kFailedPrecondition, "no context of that GPU is current on this thread"};
    case CUDA_ERROR_NOT_SUPPORTED:
      return {absl::StatusCode::kUnimplemented, "this GPU or driver cannot do it"};
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return {absl::StatusCode::kUnavailable, "the node is not ready: is nvidia-fabricmanager running?"};
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return {absl::StatusCode::kFailedPrecondition,
              "the kernel module and the library of the driver are of two versions: reboot the node"};
    case CUDA_ERROR_INVALID_VALUE:
      return {absl::StatusCode::kInvalidArgument, ""};
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return {absl::StatusCode::kAborted, "the context is lost; the process has to be started again"};
    default:
      return {absl::StatusCode::kInternal, ""};
  }
}

absl::Status Find(PFN_cuGetProcAddress_v12000 get, const char* name, int version, void** entry) {
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result = get(name, entry, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
  if (result == CUDA_SUCCESS && *entry != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the GPU driver lacks ", name, " of CUDA ", version / 1000, ".",
                                                    version % 1000 / 10, ": install a newer driver"));
}

}  // namespace

absl::StatusOr<CudaApi> LoadCudaApi(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    // One call: the text of dlerror is gone after it.
    return absl::NotFoundError(absl::StrCat("no GPU driver: ", ::dlerror()));
  }
  void* const get = ::dlsym(handle, "cuGetProcAddress_v2");
  if (get == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, " has no cuGetProcAddress_v2: install a driver of ", kOldestDriver, " or newer"));
  }
  const auto get_entry = reinterpret_cast<PFN_cuGetProcAddress_v12000>(get);
  CudaApi api;
#define KVARTAL_CUDA_FIND(name, version) \
  KV_RETURN_IF_ERROR(Find(get_entry, #name, version, reinterpret_cast<void**>(&api.name)));
  KVARTAL_CUDA_CALLS(KVARTAL_CUDA_FIND)
#undef KVARTAL_CUDA_FIND
  api.simulated = ::dlsym(handle, kSimulatedMark) != nullptr;
  return api;
}

absl::Status CudaStatus(const CudaApi& api, CUresult result, absl::string_view call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  if (api.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an error it has no name for";
  const Advice advice = AdviceFor(result);
  return absl::Status(advice.code, absl::StrCat(call, ": ", name, " (", static_cast<int>(result), ")",
                                                *advice.what_to_do == '\0' ? "" : ": ", advice.what_to_do));
}

}  // namespace kvartal::device
