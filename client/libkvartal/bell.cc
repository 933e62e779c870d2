#include "client/libkvartal/bell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace kvartal::client {

Bell::Bell() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Bell::Ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof(one));
}

void Bell::Silence() {
  uint64_t rings;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &rings, sizeof(rings));
}

}  // namespace kvartal::client
