// What passes between the daemon and kvartal-mover, over a SOCK_SEQPACKET pair: a MoverRequest a packet one way; one
// MoverHello and then packets of up to kMoverAnswersPerPacket MoverAnswers the other. Both are of one build and one
// machine, so these are plain structs; a mover of another version is sent away.
// Plain values.
// Invariant: each request is answered once, by its number; the number 0 is nobody's: with it a mover says why it ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "daemon/base/status.h"

namespace kvartal::device {

inline constexpr int kMoverSocketFd = 3;  // the mover's end, in the mover
inline constexpr uint32_t kMoverMagic = 0x4d564b31;
inline constexpr uint32_t kMoverVersion = 1;

// How a mover ends; 0 when the daemon's end of the socket is gone.
inline constexpr int kMoverExitRefused = 2;      // it could not begin: no driver, no such GPU, no memory for a context
inline constexpr int kMoverExitContextLost = 3;  // a sticky error: only another process can go on
inline constexpr int kMoverExitFailed = 4;       // another error of the driver on the way, or words it does not know

enum class MoverVerb : uint32_t {
  kAddSlab = 1,  // with one descriptor
  kAddArena,     // with one descriptor
  kForgetSlab,
  kForgetArena,
  kCopyToGpu,
  kCopyToHost,
  kScrub,
};

struct MoverRequest {
  uint64_t operation = 0;
  MoverVerb verb = MoverVerb::kScrub;
  uint32_t background = 0;  // of a copy: 0 or 1
  uint64_t slab = 0;
  uint64_t slab_offset = 0;
  uint64_t arena = 0;
  uint64_t arena_offset = 0;
  uint64_t bytes = 0;  // of a copy; of memory that is added
};
static_assert(sizeof(MoverRequest) == 56 && std::is_trivially_copyable_v<MoverRequest>);

struct MoverHello {
  uint32_t magic = kMoverMagic;
  uint32_t version = kMoverVersion;
  uint32_t simulated = 0;  // no GPU is behind it
  uint32_t reserved = 0;
};
static_assert(sizeof(MoverHello) == 16 && std::is_trivially_copyable_v<MoverHello>);

struct MoverAnswer {
  uint64_t operation = 0;
  uint32_t code = 0;             // an absl::StatusCode
  std::array<char, 244> text{};  // ends with a zero

  static MoverAnswer Of(uint64_t operation, const absl::Status& status) {
    MoverAnswer answer;
    answer.operation = operation;
    answer.code = static_cast<uint32_t>(status.code());
    const absl::string_view message = status.message().substr(0, answer.text.size() - 1);
    std::copy(message.begin(), message.end(), answer.text.begin());
    return answer;
  }
  absl::Status status() const {
    const absl::string_view message(text.data(), ::strnlen(text.data(), text.size()));
    return absl::Status(static_cast<absl::StatusCode>(code), message);
  }
};
static_assert(sizeof(MoverAnswer) == 256 && std::is_trivially_copyable_v<MoverAnswer>);

}  // namespace kvartal::device
