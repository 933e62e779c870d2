#include "daemon/mover/copy_queue.h"

#include <algorithm>

#include "daemon/device/mover_limits.h"

namespace kvartal::mover {

using device::GpuPriority;
using device::kMoverChunkBytes;

void CopyQueue::Push(const Copy& copy, GpuPriority priority) {
  lines_[static_cast<size_t>(priority)].push_back({copy});
}

std::optional<Chunk> CopyQueue::Next() {
  const Line& demand = lines_[static_cast<size_t>(GpuPriority::kDemand)];
  const Line& background = lines_[static_cast<size_t>(GpuPriority::kBackground)];
  if (demand.empty() && background.empty()) return std::nullopt;
  const bool turn = !background.empty() && (demand.empty() || demand_run_ >= device::kMoverDemandRun);
  demand_run_ = turn || background.empty() ? 0 : demand_run_ + 1;
  Chunk chunk;
  chunk.priority = turn ? GpuPriority::kBackground : GpuPriority::kDemand;
  Line& line = lines_[static_cast<size_t>(chunk.priority)];
  chunk.gpu = line.front().copy.gpu + line.front().taken;
  if (line.front().copy.host != nullptr) chunk.host = line.front().copy.host + line.front().taken;
  const uint64_t slab = line.front().copy.slab, arena = line.front().copy.arena;
  do {
    TakeFromFront(&line, &chunk);
  } while (chunk.bytes < kMoverChunkBytes && !line.empty() && line.front().copy.slab == slab &&
           line.front().copy.arena == arena && GoesOn(line, chunk));
  return chunk;
}

void CopyQueue::TakeFromFront(Line* line, Chunk* chunk) {
  Waiting& front = line->front();
  const uint64_t bytes = std::min(front.copy.bytes - front.taken, kMoverChunkBytes - chunk->bytes);
  front.taken += bytes;
  chunk->bytes += bytes;
  if (front.taken < front.copy.bytes) return;
  chunk->ended.push_back(front.copy);
  line->pop_front();
}

bool CopyQueue::GoesOn(const Line& line, const Chunk& chunk) {
  const Copy& next = line.front().copy;
  if (next.gpu != chunk.gpu + chunk.bytes || (next.host == nullptr) != (chunk.host == nullptr)) return false;
  return next.host == nullptr || next.host == chunk.host + chunk.bytes;
}

}  // namespace kvartal::mover
