#include "client/libkvartal/bell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace kvartal::client {

std::shared_ptr<Bell> Bell::Make(std::string* error) {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.valid()) return std::shared_ptr<Bell>(new Bell(std::move(fd)));
  const int code = errno;
  *error = std::string("cannot wake a background thread: ") + std::strerror(code);
  if (code == EMFILE) *error += " (the limit of open files of this process is reached: raise it, ulimit -n)";
  return nullptr;
}

void Bell::Ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof(one));
}

void Bell::Silence() {
  uint64_t rings;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &rings, sizeof(rings));
}

}  // namespace kvartal::client
