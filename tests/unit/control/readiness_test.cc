#include "daemon/control/readiness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "daemon/base/unique_fd.h"

namespace kvartal::control {
namespace {

TEST(SignalReadyFd, WritesOneByteAndCloses) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reader(ends[0]);
  ASSERT_TRUE(SignalReadyFd(ends[1]).ok());
  char bytes[8];
  EXPECT_EQ(::read(reader.get(), bytes, sizeof(bytes)), 1);
  EXPECT_EQ(::read(reader.get(), bytes, sizeof(bytes)), 0);  // the end of file: the writer is closed
}

TEST(SignalReadyFd, ABadDescriptorIsAnError) { EXPECT_FALSE(SignalReadyFd(987).ok()); }

class SupervisorTest : public ::testing::Test {
 protected:
  std::string Received(const sockaddr_un& address, socklen_t bytes, const std::string& name) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    EXPECT_TRUE(NotifySupervisor(name.c_str(), "READY=1").ok());
    char text[64];
    const ssize_t got = ::recv(fd.get(), text, sizeof(text), MSG_DONTWAIT);
    return got < 0 ? "" : std::string(text, static_cast<size_t>(got));
  }
};

TEST_F(SupervisorTest, TellsASocketInAFolder) {
  char folder[] = "/tmp/kvartal-notify-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  EXPECT_EQ(Received(address, sizeof(address), path), "READY=1");
  std::filesystem::remove_all(folder);
}

TEST_F(SupervisorTest, TellsAnAbstractSocket) {
  const std::string name = "@kvartal-notify-test-" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  EXPECT_EQ(Received(address, bytes, name), "READY=1");
}

TEST_F(SupervisorTest, NoSupervisorIsFineAndADeadOneIsAnError) {
  EXPECT_TRUE(NotifySupervisor(nullptr, "READY=1").ok());
  EXPECT_TRUE(NotifySupervisor("", "READY=1").ok());
  EXPECT_FALSE(NotifySupervisor("/nonexistent/notify", "READY=1").ok());
}

}  // namespace
}  // namespace kvartal::control
