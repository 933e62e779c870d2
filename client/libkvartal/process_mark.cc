#include "client/libkvartal/process_mark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace kvartal::client {
namespace {

std::atomic<uint64_t> next_mark{1};  // copied by fork, so a child's marks differ from all of its parents'

// A page that every fork wipes. nullptr where the system cannot do that: then the process id has to tell.
std::atomic<uint64_t>* WipedPage() {
  static std::atomic<uint64_t>* const page = []() -> std::atomic<uint64_t>* {
    void* data =
        ::mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    if (::madvise(data, sizeof(std::atomic<uint64_t>), MADV_WIPEONFORK) == 0) {
      return static_cast<std::atomic<uint64_t>*>(data);
    }
    ::munmap(data, sizeof(std::atomic<uint64_t>));
    return nullptr;
  }();
  return page;
}

uint64_t CurrentMark() {
  std::atomic<uint64_t>* const page = WipedPage();
  return page != nullptr ? page->load(std::memory_order_relaxed) : static_cast<uint64_t>(::getpid());
}

}  // namespace

ProcessMark ProcessMark::Here() {
  std::atomic<uint64_t>* const page = WipedPage();
  if (page != nullptr) {
    uint64_t unset = 0;
    page->compare_exchange_strong(unset, next_mark.fetch_add(1));
  }
  return ProcessMark(CurrentMark());
}

bool ProcessMark::IsHere() const { return CurrentMark() == value_; }

}  // namespace kvartal::client
