#include "daemon/control/readiness.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::control {

absl::Status SignalReadyFd(int fd) {
  const UniqueFd owned(fd);
  const char byte = '\n';
  if (::write(owned.get(), &byte, 1) == 1) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("writing to the ready fd ", fd));
}

absl::Status NotifySupervisor(const char* address, std::string_view state) {
  if (address == nullptr || *address == '\0') return absl::OkStatus();
  sockaddr_un peer{};
  peer.sun_family = AF_UNIX;
  const size_t length = std::strlen(address);
  if (length >= sizeof(peer.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("NOTIFY_SOCKET is too long: ", address));
  }
  std::memcpy(peer.sun_path, address, length);
  if (peer.sun_path[0] == '@') peer.sun_path[0] = '\0';
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "making a datagram socket");
  const socklen_t peer_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  const ssize_t sent = ::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&peer), peer_bytes);
  if (sent == static_cast<ssize_t>(state.size())) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("telling the supervisor at ", address));
}

}  // namespace kvartal::control
