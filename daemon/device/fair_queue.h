// Whose turn it is at one device: classes in order of urgency, and inside a class deficit round robin over owners
// (Shreedhar and Varghese, 1995), so that bytes, not requests, are shared by weight.
// Confined to one thread; no clock, no I/O.
// Invariants: what was pushed comes out exactly once, first come first served within an owner and class; background
// work that waits gets at least kBackgroundFloorPercent of the bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/check.h"
#include "daemon/base/ids.h"
#include "daemon/base/limits.h"
#include "daemon/device/block_file.h"

namespace kvartal::device {

template <typename Work>
class FairQueue {
 public:
  // 100 is what an owner has who was never named.
  void SetWeight(DomainId owner, uint32_t weight) { owners_[owner].weight = std::max<uint32_t>(weight, 1); }

  void Push(DomainId owner, IoClass io_class, uint64_t cost_bytes, Work work) {
    Owner& who = owners_[owner];
    Line& line = who.lines[static_cast<size_t>(io_class)];
    if (line.waiting.empty()) Class(io_class).push_back(owner);
    line.waiting.push_back({cost_bytes, std::move(work)});
    ++size_;
  }

  std::optional<Work> Pop() {
    if (size_ == 0) return std::nullopt;
    const bool foreground = !Class(IoClass::kDemandRead).empty() || !Class(IoClass::kPromotion).empty();
    const bool background = !Class(IoClass::kDemotion).empty() || !Class(IoClass::kScrub).empty();
    const bool contended = foreground && background;
    if (!contended) background_credit_ = 0;
    const bool take_background = !foreground || (contended && background_credit_ > 0);
    Waiting popped = PopFrom(take_background ? MostUrgentBackground() : MostUrgentForeground());
    if (contended) {
      const auto cost = static_cast<int64_t>(popped.cost_bytes);
      constexpr int64_t kFloor = kBackgroundFloorPercent;
      background_credit_ += take_background ? -cost : cost * kFloor / (100 - kFloor);
    }
    return std::move(popped.work);
  }

  // The first of an owner's work of a class that `is_it` knows, out of its turn and free of cost.
  template <typename IsIt>
  std::optional<Work> Take(DomainId owner, IoClass io_class, IsIt is_it) {
    const auto who = owners_.find(owner);
    if (who == owners_.end()) return std::nullopt;
    Line& line = who->second.lines[static_cast<size_t>(io_class)];
    const auto at = std::find_if(line.waiting.begin(), line.waiting.end(),
                                 [&](const Waiting& waiting) { return is_it(waiting.work); });
    if (at == line.waiting.end()) return std::nullopt;
    Work taken = std::move(at->work);
    line.waiting.erase(at);
    --size_;
    if (line.waiting.empty()) {
      std::deque<DomainId>& turns = Class(io_class);
      turns.erase(std::find(turns.begin(), turns.end(), owner));
      line.deficit_bytes = 0;
      line.has_turn = false;
    }
    return taken;
  }

  size_t size() const { return size_; }

 private:
  struct Waiting {
    uint64_t cost_bytes;
    Work work;
  };
  struct Line {
    std::deque<Waiting> waiting;
    uint64_t deficit_bytes = 0;
    bool has_turn = false;  // its quantum of this turn was added
  };
  struct Owner {
    uint32_t weight = 100;
    std::array<Line, kIoClassCount> lines;
  };

  std::deque<DomainId>& Class(IoClass io_class) { return turns_[static_cast<size_t>(io_class)]; }

  IoClass MostUrgentForeground() {
    return Class(IoClass::kDemandRead).empty() ? IoClass::kPromotion : IoClass::kDemandRead;
  }
  IoClass MostUrgentBackground() { return Class(IoClass::kDemotion).empty() ? IoClass::kScrub : IoClass::kDemotion; }

  Waiting PopFrom(IoClass io_class) {
    std::deque<DomainId>& turns = Class(io_class);
    for (;;) {
      const DomainId owner = turns.front();
      Owner& who = owners_[owner];
      Line& line = who.lines[static_cast<size_t>(io_class)];
      if (!line.has_turn) line.deficit_bytes += kIoQuantumBytes * who.weight / 100;
      line.has_turn = true;
      if (line.waiting.front().cost_bytes > line.deficit_bytes) {
        line.has_turn = false;
        turns.pop_front();
        turns.push_back(owner);
        continue;
      }
      Waiting popped = std::move(line.waiting.front());
      line.waiting.pop_front();
      line.deficit_bytes -= popped.cost_bytes;
      if (line.waiting.empty()) {
        line.deficit_bytes = 0;
        line.has_turn = false;
        turns.pop_front();
      }
      --size_;
      return popped;
    }
  }

  absl::flat_hash_map<DomainId, Owner> owners_;
  std::array<std::deque<DomainId>, kIoClassCount> turns_;  // owners with waiting work, whose turn it is in front
  // What background work may take before foreground work that waits. Earned by foreground bytes while it waits.
  int64_t background_credit_ = 0;
  size_t size_ = 0;
};

}  // namespace kvartal::device
