#include "client/libkvartal/arena_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "client/libkvartal/client_limits.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvartal::client {
namespace {

void* MapShared(const UniqueFd& fd, uint64_t bytes, int protection) {
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  return data == MAP_FAILED ? nullptr : data;
}

// Not mmap itself: thread sanitizers take that for a write of every byte, which races with a reader of the
// old ones. That reader is told by kv_block_valid.
bool MapZeros(void* data, uint64_t bytes, int protection) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return ::syscall(SYS_mmap, data, bytes, protection, kFlags, -1, 0) != -1;
}

// A stray write of the program into a block it no longer owns must not crash it either, where the system allows that.
void ReplaceByZeros(void* data, uint64_t bytes) {
  if (!MapZeros(data, bytes, PROT_READ | PROT_WRITE)) MapZeros(data, bytes, PROT_READ);
}

// The daemon takes memory back without a word, and to populate a hole, also for reading, allocates it at the cost of
// this process. What it takes back between the two calls is filled all the same, until it finds the stray pages.
void PopulateResident(std::byte* data, uint64_t bytes) {
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::array<unsigned char, kPopulatePartBytes / kSlotAlignBytes> resident{};
  if (::mincore(data, bytes, resident.data()) != 0) return;
  const auto end = resident.begin() + static_cast<ptrdiff_t>(bytes / page_bytes);
  const auto is_there = [](unsigned char page) { return (page & 1) != 0; };
  for (auto first = std::find_if(resident.begin(), end, is_there); first != end;) {
    const auto last = std::find_if_not(first, end, is_there);
    // Fails on kernels before 5.14: then use brings the pages in.
    ::madvise(data + static_cast<uint64_t>(first - resident.begin()) * page_bytes,
              static_cast<uint64_t>(last - first) * page_bytes, MADV_POPULATE_WRITE);
    first = std::find_if(last, end, is_there);
  }
}

}  // namespace

bool ArenaMap::Identify(const UniqueFd& fd, FileIdentity* identity) {
  struct stat info{};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  *identity = {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size)};
  return true;
}

// A file that may shrink can take pages away under a reader, whatever its size is now.
bool ArenaMap::IsSealed(const UniqueFd& fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

std::shared_ptr<ArenaMap> ArenaMap::Map(const UniqueFd& arena_fd, const UniqueFd& generation_fd, uint64_t arena_bytes,
                                        std::string* error) {
  if (arena_bytes == 0 || arena_bytes > kArenaBytesMax || arena_bytes % kSlotAlignBytes != 0) {
    *error = "the daemon announced an arena of " + std::to_string(arena_bytes) + " bytes, which cannot be";
    return nullptr;
  }
  if (!IsSealed(arena_fd) || !IsSealed(generation_fd)) {
    *error = "the daemon sent memory that is not sealed against shrinking: whoever shortens it would crash its readers";
    return nullptr;
  }
  std::shared_ptr<ArenaMap> map(new ArenaMap());
  map->bytes_ = arena_bytes;
  map->generation_bytes_ = arena_bytes / kSlotAlignBytes * sizeof(uint32_t);
  // Touching a page behind the end of a file is a SIGBUS: the sizes must be as told, and stay so.
  if (!Identify(arena_fd, &map->arena_file_) || map->arena_file_.bytes < arena_bytes) {
    *error = "the daemon sent an arena that is smaller than the " + std::to_string(arena_bytes) + " bytes it announced";
    return nullptr;
  }
  if (!Identify(generation_fd, &map->generation_file_) || map->generation_file_.bytes < map->generation_bytes_) {
    *error = "the daemon sent a generation table that does not cover its arena";
    return nullptr;
  }
  map->data_ = static_cast<std::byte*>(MapShared(arena_fd, arena_bytes, PROT_READ | PROT_WRITE));
  if (map->data_ == nullptr) {
    *error = "cannot map an arena of " + std::to_string(arena_bytes) + " bytes: " + std::strerror(errno) +
             " (is the address space limited, ulimit -v?)";
    return nullptr;
  }
  map->generations_ = static_cast<std::atomic<uint32_t>*>(MapShared(generation_fd, map->generation_bytes_, PROT_READ));
  if (map->generations_ == nullptr) {
    *error = std::string("cannot map the generation table: ") + std::strerror(errno);
    return nullptr;
  }
  ::madvise(map->data_, arena_bytes, MADV_DONTFORK);
  // A core file of the program is no place for a cache of many gigabytes of prompts.
  ::madvise(map->data_, arena_bytes, MADV_DONTDUMP);
  ::madvise(map->data_, arena_bytes, MADV_HUGEPAGE);
  ::madvise(map->generations_, map->generation_bytes_, MADV_DONTFORK);
  return map;
}

ArenaMap::~ArenaMap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (generations_ != nullptr) ::munmap(generations_, generation_bytes_);
}

bool ArenaMap::IsMemoryOf(const UniqueFd& arena_fd, const UniqueFd& generation_fd, uint64_t arena_bytes) const {
  // The mapping keeps the files alive, so their inodes cannot have been given to others meanwhile.
  FileIdentity arena, generation;
  if (arena_bytes != bytes_ || !Identify(arena_fd, &arena) || !Identify(generation_fd, &generation)) return false;
  return !retired_.load() && arena.device == arena_file_.device && arena.inode == arena_file_.inode &&
         generation.device == generation_file_.device && generation.inode == generation_file_.inode;
}

std::byte* ArenaMap::At(uint64_t offset, uint64_t bytes) const {
  if (!InArena(offset, bytes) || offset == bytes_ || offset % kSlotAlignBytes != 0) return nullptr;
  return data_ + offset;
}

bool ArenaMap::Contains(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  return address >= begin && address - begin < bytes_;
}

bool ArenaMap::Unchanged(uint64_t offset, uint32_t generation) const {
#if !defined(__SANITIZE_THREAD__)
  // The program's reads of the block must come before the read of the generation.
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  if (generations_[offset / kSlotAlignBytes].load(std::memory_order_acquire) != generation) return false;
  // After the generation: Empty makes both read as zeros, and is announced before it begins.
  return !retired_.load(std::memory_order_seq_cst);
}

bool ArenaMap::AddGranted(uint64_t offset, uint64_t bytes) {
  if (!InArena(offset, bytes) || offset % kSlotAlignBytes != 0 || bytes % kSlotAlignBytes != 0) return false;
  const std::lock_guard lock(mutex_);
  if (bytes > 0 && to_populate_.size() < kPopulateQueueMax) to_populate_.push_back({offset, bytes});
  return true;
}

bool ArenaMap::PopulatePart() {
  Range part;
  bool more;
  {
    const std::lock_guard lock(mutex_);
    if (to_populate_.empty()) return false;
    Range& front = to_populate_.front();
    part = {front.offset, std::min(front.bytes, kPopulatePartBytes)};
    front.offset += part.bytes;
    front.bytes -= part.bytes;
    if (front.bytes == 0) to_populate_.pop_front();
    more = !to_populate_.empty();
  }
  PopulateResident(data_ + part.offset, part.bytes);
  return more;
}

void ArenaMap::Empty() {
  {
    const std::lock_guard lock(mutex_);
    to_populate_.clear();
  }
  ReplaceByZeros(data_, bytes_);
  ReplaceByZeros(generations_, generation_bytes_);
}

}  // namespace kvartal::client
