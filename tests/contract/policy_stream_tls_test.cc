// TLS between operator and daemon, with certificates that are exchanged while both run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>

#include "daemon/control/stream_feed.h"
#include "daemon/control/sync_stream.h"
#include "operator/sync/sync_server.h"
#include "tests/support/daemon_process.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::control {
namespace {

constexpr int64_t kPatienceNs = 60'000'000'000;
constexpr int64_t kSilenceNs = 4'000'000'000;

class PolicyStreamTlsTest : public ::testing::Test {
 protected:
  PolicyStreamTlsTest() : loop_(*EventLoop::Create(&clock_)) {}
  void SetUp() override {
    MakeAuthority("one");
    MakeAuthority("two");
    UseCertificateOf("one");
    auto server = sync::SyncServer::Start(
        {.address = "127.0.0.1:0", .cert_file = dir_.File("tls.crt"), .key_file = dir_.File("tls.key")}, loop_.get(),
        {.on_message =
             [this](auto stream, const std::string& token, const auto&) {
               token_ = token;
               auto welcome = std::make_shared<sync::v1::OperatorMessage>();
               welcome->mutable_welcome();
               server_->Send(stream, welcome);
             },
         .on_end = [](auto) {}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Openssl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/usr/bin/openssl");
    const testing::CommandResult result = testing::RunCommand(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  // <name>.ca and a certificate for this machine, <name>.crt with <name>.key.
  void MakeAuthority(const std::string& name) {
    const std::string base = dir_.File(name);
    const std::vector<std::string> key = {"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"};
    std::vector<std::string> ca = {"req",         "-x509",   "-new",           "-days", "2",         "-subj",
                                   "/CN=" + name, "-keyout", base + ".ca.key", "-out",  base + ".ca"};
    ca.insert(ca.end(), key.begin(), key.end());
    Openssl(ca);
    std::vector<std::string> request = {"req",     "-new",        "-subj", "/CN=operator",
                                        "-keyout", base + ".key", "-out",  base + ".csr"};
    request.insert(request.end(), key.begin(), key.end());
    Openssl(request);
    testing::WriteFile(base + ".ext", "subjectAltName=IP:127.0.0.1\n");
    Openssl({"x509", "-req", "-in", base + ".csr", "-CA", base + ".ca", "-CAkey", base + ".ca.key", "-CAcreateserial",
             "-days", "2", "-extfile", base + ".ext", "-out", base + ".crt"});
  }
  void UseCertificateOf(const std::string& name) {
    testing::WriteFile(dir_.File("tls.crt"), testing::ReadFile(dir_.File(name + ".crt")));
    testing::WriteFile(dir_.File("tls.key"), testing::ReadFile(dir_.File(name + ".key")));
  }
  // Whether a daemon that trusts this authority gets an answer. A stream waits for its connection for ever: a refused
  // one is told by its silence.
  bool Reaches(const std::string& authority, const std::string& token_file = "") {
    bool ended = false, welcome = false;
    SyncChannel channel;
    auto stream = SyncStream::Dial(
        {.address = "127.0.0.1:" + std::to_string(server_->port()),
         .ca_file = authority.empty() ? "" : dir_.File(authority + ".ca"),
         .token_file = token_file},
        /*patient=*/true, loop_.get(), {},
        {.on_message = [&](const auto&) { welcome = true; }, .on_end = [&](const absl::Status&) { ended = true; }},
        &channel);
    EXPECT_TRUE(stream.ok()) << stream.status();
    const int64_t until_ns = clock_.MonotonicNs() + kSilenceNs;
    while (!ended && !welcome && clock_.MonotonicNs() < until_ns) loop_->RunOnce(20);
    return welcome;
  }

  const SystemClock clock_;
  const testing::ScratchDir dir_;
  std::unique_ptr<EventLoop> loop_;
  std::string token_;
  std::unique_ptr<sync::SyncServer> server_;
};

TEST_F(PolicyStreamTlsTest, OnlyWhomTheAuthorityVouchesForIsTalkedTo) {
  testing::WriteFile(dir_.File("token"), "the token\n");
  EXPECT_FALSE(Reaches("two", dir_.File("token")));
  EXPECT_FALSE(Reaches(""));
  EXPECT_EQ(token_, "") << "it was shown to somebody unknown";
  EXPECT_TRUE(Reaches("one", dir_.File("token")));
  EXPECT_EQ(token_, "the token");
}

TEST_F(PolicyStreamTlsTest, AnExchangedCertificateIsUsedWithoutARestart) {
  ASSERT_TRUE(Reaches("one"));
  UseCertificateOf("two");
  const int64_t until_ns = clock_.MonotonicNs() + kPatienceNs;
  bool reached = false;
  while (!reached && clock_.MonotonicNs() < until_ns) reached = Reaches("two");
  EXPECT_TRUE(reached);
}

// Operator and daemons get a new authority at different times: a stream that waits since before finds it.
TEST_F(PolicyStreamTlsTest, AnAuthorityThatIsExchangedWhileAStreamWaitsIsFound) {
  const std::string trusted = dir_.File("trusted.ca");
  testing::WriteFile(trusted, testing::ReadFile(dir_.File("two.ca")));
  StreamFeedOptions options;
  options.stream.address = "127.0.0.1:" + std::to_string(server_->port());
  options.stream.ca_file = trusted;
  options.keep_in = dir_.path();
  options.node = "n1";
  options.redial_ms = 20;
  options.patience_ms = 200;
  StreamFeed feed(std::move(options), {}, &clock_);
  ASSERT_TRUE(feed.Begin().ok());
  feed.Watch(loop_.get(), [](const auto&) { return absl::OkStatus(); });
  const int64_t until_ns = clock_.MonotonicNs() + kPatienceNs;
  const auto run_until = [&](const std::function<bool()>& reached) {
    while (!reached() && clock_.MonotonicNs() < until_ns) loop_->RunOnce(20);
    return reached();
  };
  EXPECT_TRUE(run_until([&] { return feed.note().find(" s: ") != std::string::npos; })) << feed.note();
  EXPECT_NE(feed.away_ms(), 0u);
  testing::WriteFile(trusted, testing::ReadFile(dir_.File("one.ca")));
  EXPECT_TRUE(run_until([&] { return feed.away_ms() == 0; })) << feed.note();
  EXPECT_EQ(feed.note(), "");
  feed.StopWatching();
}

TEST_F(PolicyStreamTlsTest, ATokenThatCannotBeReadIsSaid) {
  SyncChannel channel;
  const auto stream =
      SyncStream::Dial({.address = "127.0.0.1:1", .ca_file = "", .token_file = dir_.File("none")}, true, loop_.get(),
                       {}, {.on_message = [](const auto&) {}, .on_end = [](const auto&) {}}, &channel);
  EXPECT_THAT(std::string(stream.status().message()), ::testing::HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace kvartal::control
