// The real transport against sockets of this test: what the test does not answer is not answered.
#include "operator/kube/cpprest_transport.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::kube {
namespace {

constexpr int kPatienceMs = 20'000;  // until the test gives up

class CpprestTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener_.get(), any, size), 0);
    ASSERT_EQ(::listen(listener_.get(), 8), 0);
    ASSERT_EQ(::getsockname(listener_.get(), any, &size), 0);
    ClusterAccess access;
    access.server = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port));
    auto transport = CpprestTransport::Create(access, loop_.get());
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
  }

  HttpTransport::CallId Get(const std::string& target) {
    HttpRequest request;
    request.target = target;
    return transport_->Start(std::move(request), {[](const HttpHead&) {}, [](std::string_view) {},
                                                  [this](const absl::Status& status) { ended_ += status.ok(); }});
  }
  // The index of the connection on which the request came; -1: none did.
  int Serve(const std::string& target) {
    for (;;) {
      std::vector<pollfd> wait = {{listener_.get(), POLLIN, 0}};
      for (const UniqueFd& connection : connections_) wait.push_back({connection.get(), POLLIN, 0});
      if (::poll(wait.data(), wait.size(), kPatienceMs) <= 0) return -1;
      if (wait[0].revents != 0) connections_.emplace_back(::accept(listener_.get(), nullptr, nullptr));
      for (size_t i = 1; i < wait.size(); ++i) {
        if (wait[i].revents == 0) continue;
        char request[4096];
        const ssize_t got = ::read(wait[i].fd, request, sizeof(request));
        // Closed by the transport: polled no more, and its place is kept.
        if (got <= 0) connections_[i - 1].reset();
        if (got > 0 && std::string_view(request, static_cast<size_t>(got)).find(target) != std::string_view::npos)
          return static_cast<int>(i) - 1;
      }
    }
  }
  void Answer(int connection) {
    constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    const int fd = connections_[static_cast<size_t>(connection)].get();
    ASSERT_EQ(::write(fd, kAnswer.data(), kAnswer.size()), static_cast<ssize_t>(kAnswer.size()));
  }

  ManualClock clock_;
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create(&clock_).value();
  UniqueFd listener_;
  std::vector<UniqueFd> connections_;
  int ended_ = 0;
  std::unique_ptr<CpprestTransport> transport_;
};

// Behind a balancer that forgot them all connections are half open at once: the next call would hang on another one.
TEST_F(CpprestTransportTest, AfterACallThatWasFailedNoConnectionFromBeforeIsUsed) {
  Get("/one");
  Get("/two");
  // Which of them comes first is not ours to say.
  const int one = Serve("GET /"), two = Serve("GET /");
  ASSERT_TRUE(one >= 0 && two >= 0 && one != two);
  Answer(one);
  Answer(two);
  while (ended_ < 2) loop_->RunOnce(kPatienceMs);
  const HttpTransport::CallId hangs = Get("/three");
  ASSERT_GE(Serve("/three"), 0);
  const int before = static_cast<int>(connections_.size());
  transport_->Fail(hangs);
  Get("/four");
  EXPECT_GE(Serve("/four"), before);
}

}  // namespace
}  // namespace kvartal::kube
