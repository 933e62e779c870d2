#include "operator/kube/health_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/unique_fd.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {
namespace {

using ::testing::HasSubstr;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int FreePort() {
  for (int port = 20000 + ::getpid() % 10000; port < 32000; ++port) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(port);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return port;
  }
  return 0;
}

std::string Ask(int port, const std::string& path) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return "no connection";
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer(65536, '\0');
  size_t filled = 0;
  for (ssize_t got; (got = ::read(fd.get(), answer.data() + filled, answer.size() - filled)) > 0;)
    filled += static_cast<size_t>(got);
  answer.resize(filled);
  return answer;
}

// The loop does not run here: what is asked is answered all the same, and says so when that has lasted.
TEST(HealthServerTest, ProbesAreAnsweredWhileTheLoopIsStuck) {
  ManualClock clock;
  auto loop = EventLoop::Create(&clock).value();
  Health health;
  const int port = FreePort();
  auto server = HealthServer::Create(absl::StrCat("127.0.0.1:", port), loop.get(), &clock, &health);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Ask(port, "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Ask(port, "/readyz"), HasSubstr("waiting for start"));
  clock.AdvanceMs(kHealthStuckMs);
  EXPECT_THAT(Ask(port, "/healthz"), HasSubstr("503"));
  loop->RunOnce(0);
  EXPECT_THAT(Ask(port, "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Ask(port, "/nothing"), HasSubstr("404"));
  server->reset();
  EXPECT_EQ(Ask(port, "/healthz"), "no connection");
}

TEST(HealthServerTest, AnAddressThatCannotBeServedIsAnError) {
  const ManualClock clock;
  auto loop = EventLoop::Create(&clock).value();
  Health health;
  EXPECT_FALSE(HealthServer::Create("999.0.0.1:1", loop.get(), &clock, &health).ok());
}

}  // namespace
}  // namespace kvartal::kube
