#include "client/libkvartal/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::client {

bool ReadTokenFile(const std::string& path, std::string* token, std::string* error) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // One byte more than a token may have tells a longer file.
  token->assign(kTokenBytesMax + 1, '\0');
  size_t filled = 0;
  ssize_t got = file.valid() ? 1 : -1;
  while (got > 0 && filled < token->size()) {
    got = ::read(file.get(), token->data() + filled, token->size() - filled);
    if (got > 0) filled += static_cast<size_t>(got);
  }
  if (got < 0) {
    *error = "the token file " + path + " cannot be read: " + std::strerror(errno);
    return false;
  }
  token->resize(filled);
  while (!token->empty() && (token->back() == '\n' || token->back() == '\r' || token->back() == ' ')) token->pop_back();
  if (!token->empty() && filled <= kTokenBytesMax) return true;
  *error = "the token file " + path + (token->empty() ? " is empty" : " is longer than a token");
  return false;
}

}  // namespace kvartal::client
