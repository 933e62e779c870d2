#include "daemon/attach/outbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::attach {
namespace {

class OutboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    ours_.reset(pair[0]);
    theirs_.reset(pair[1]);
  }

  Outbox::Outcome Send(const std::string& text, const OutgoingFds& fds = {}) {
    return outbox_.Send(ours_.get(), std::as_bytes(std::span(text)), fds);
  }
  // "" when there is nothing; `fds` are closed by the caller.
  std::string Receive(std::vector<int>* fds = nullptr) {
    std::string buffer(kFrameBytesMax, '\0');
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(theirs_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0) return "";
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && fds != nullptr) {
      const int* first = reinterpret_cast<const int*>(CMSG_DATA(header));
      fds->assign(first, first + (header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    }
    return buffer.substr(0, static_cast<size_t>(got));
  }
  // Fills the socket; returns how many frames of `bytes` the kernel took.
  int FillSocket(size_t bytes) {
    int sent = 0;
    while (Send(std::to_string(sent) + std::string(bytes, '.')) == Outbox::Outcome::kSent) ++sent;
    return sent;
  }

  UniqueFd ours_, theirs_;
  Outbox outbox_;
};

TEST_F(OutboxTest, SendsAtOnceWhileTheSocketTakesIt) {
  EXPECT_EQ(Send("one"), Outbox::Outcome::kSent);
  EXPECT_TRUE(outbox_.empty());
  EXPECT_EQ(Receive(), "one");
}

TEST_F(OutboxTest, KeepsTheOrderWhenTheClientIsSlow) {
  const int sent = FillSocket(1000);  // the next one, `sent`, waits already
  for (int i = sent + 1; i < sent + 5; ++i) {
    EXPECT_EQ(Send(std::to_string(i) + std::string(1000, '.')), Outbox::Outcome::kQueued);
  }
  for (int i = 0; i < sent + 5; ++i) {
    std::string frame = Receive();
    if (frame.empty()) {
      ASSERT_NE(outbox_.Flush(ours_.get()), Outbox::Outcome::kBroken);
      frame = Receive();
    }
    EXPECT_EQ(frame.substr(0, frame.find('.')), std::to_string(i));
  }
  EXPECT_EQ(outbox_.Flush(ours_.get()), Outbox::Outcome::kSent);
  EXPECT_TRUE(outbox_.empty());
}

TEST_F(OutboxTest, IsBoundedInFramesAndInBytes) {
  FillSocket(10);
  Outbox::Outcome outcome = Outbox::Outcome::kQueued;
  while ((outcome = Send("more")) == Outbox::Outcome::kQueued) {
  }
  EXPECT_EQ(outcome, Outbox::Outcome::kFull);
  EXPECT_EQ(outbox_.frames(), kOutboxFramesMax);

  Outbox big;
  const std::string frame(kFrameBytesMax - 1, 'x');
  size_t queued = 0;
  while (big.Send(ours_.get(), std::as_bytes(std::span(frame))) == Outbox::Outcome::kQueued) ++queued;
  EXPECT_EQ(queued, kOutboxBytesMax / frame.size());
}

TEST_F(OutboxTest, FdsArriveBesideTheirFrameAlsoWhenItWaited) {
  UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd second(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const int sent = FillSocket(10);
  ASSERT_EQ(Send("grant", {2, {first.get(), second.get()}}), Outbox::Outcome::kQueued);
  for (int i = 0; i < sent; ++i) Receive();
  ASSERT_EQ(outbox_.Flush(ours_.get()), Outbox::Outcome::kSent);
  Receive();  // the frame that waited before the grant
  std::vector<int> fds;
  EXPECT_EQ(Receive(&fds), "grant");
  ASSERT_EQ(fds.size(), 2u);
  char byte = 'x';
  EXPECT_EQ(::read(fds[0], &byte, 1), 0) << "/dev/null";
  EXPECT_EQ(::read(fds[1], &byte, 1), 1) << "/dev/zero";
  for (int fd : fds) ::close(fd);
}

TEST_F(OutboxTest, AClosedPeerIsBrokenNotASignal) {
  theirs_.reset();
  EXPECT_EQ(Send("anyone?"), Outbox::Outcome::kBroken);
}

}  // namespace
}  // namespace kvartal::attach
