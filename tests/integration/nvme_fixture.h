// A real kvartald with a disk, and clients of the library that verify every byte: what tests of a damaged disk share.
// Confined to the thread of the test.
// Invariant: damage is done to the data file only while the daemon is stopped.
#pragma once

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"
#include "tests/support/daemon_process.h"
#include "tools/admin/admin_client.h"
#include "tools/kvartal-bench/bench_client.h"
#include "tools/kvartal-bench/block_bytes.h"
#include "tools/kvartal-bench/verified_load.h"

namespace kvartal::testing {

inline constexpr uint32_t kNvmeTestBlockBytes = 64 * kKiB;
inline constexpr auto kNvmeTestPatience = std::chrono::seconds(60);

// What became of blocks that were asked for, each by itself.
struct Census {
  uint64_t right = 0;        // loaded, and every byte is what its key says
  uint64_t missed = 0;       // not found, or found and lost while it was loaded
  uint64_t wrong_bytes = 0;  // served and wrong
  uint64_t from_nvme = 0;    // of the found ones: were on NVMe only
};

class NvmeTest : public ::testing::Test {
 public:
  // Few enough bytes of DRAM that most blocks live on NVMe only.
  static DaemonOptions Options() {
    DaemonOptions options;
    options.nvme_size = "64Mi";
    options.manifests = TenantManifest("own", absl::StrCat("uid: ", ::getuid()), "4Mi", "64Mi");
    return options;
  }

 protected:
  explicit NvmeTest(DaemonOptions options = Options()) : daemon_(std::move(options)) {}

  void Start() {
    ASSERT_NO_FATAL_FAILURE(StartDaemon());
    Attach(daemon_.attach_socket(), &client_);
  }
  void StartDaemon() {
    ASSERT_TRUE(daemon_.Start().ok()) << daemon_.log();
    admin_ = std::make_unique<admin::AdminClient>(admin::AdminClient::WaitingFor(daemon_.admin_socket()));
    Until("the end of recovery", [this] { return !Status().recovering(); });
  }
  void Stop() {
    client_.reset();
    daemon_.Signal(SIGTERM);
    const ExitState state = daemon_.WaitForEnd();
    EXPECT_TRUE(state.exited && state.code == 0) << daemon_.log();
  }
  static void Attach(const std::string& socket, std::unique_ptr<bench::BenchClient>* client) {
    auto attached = bench::BenchClient::Attach(socket, "nvme-faults", {16, 1, kNvmeTestBlockBytes});
    ASSERT_TRUE(attached.ok()) << attached.status();
    *client = *std::move(attached);
  }

  admin::v1::StatusReply Status() {
    const auto status = admin_->GetStatus();
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(admin::v1::StatusReply());
  }
  admin::v1::Tenant Tenant(const std::string& name = "test/own") {
    const auto tenant = admin_->GetTenant(name);
    EXPECT_TRUE(tenant.ok()) << tenant.status();
    return tenant.value_or(admin::v1::Tenant());
  }
  void ExpectBooksAgree() {
    const admin::v1::TenantTier nvme = admin::TierOf(Tenant(), "nvme");
    EXPECT_EQ(nvme.charged_bytes(), nvme.blocks() * (kNvmeTestBlockBytes + kNvmeHeaderBytes));
    const absl::Status invariants = admin_->CheckInvariants().status();
    EXPECT_TRUE(invariants.ok()) << invariants;
    EXPECT_EQ(Status().bugs(), 0u);
  }

  static std::vector<BlockKey> Keys(const std::string& domain, uint64_t count) {
    std::vector<BlockKey> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(bench::MakeKey(domain, i));
    return keys;
  }
  // Stores them and returns when all are durable. `as_chain`: one chain; else each is the head of its own.
  void StoreDurably(bench::BenchClient* client, std::span<const BlockKey> keys, bool as_chain = false) {
    const size_t step = as_chain ? keys.size() : 1;
    const auto already = client->Poll(0);
    ASSERT_TRUE(already.ok()) << already.status();
    for (size_t first = 0; first < keys.size(); first += step) {
      const std::span<const BlockKey> chain = keys.subspan(first, step);
      const auto stored = client->Store(
          chain, 0, step, 0, [&](const bench::Granted& slot) { bench::FillBlock(chain[slot.index], slot.bytes); });
      ASSERT_TRUE(stored.ok()) << stored.status();
      ASSERT_EQ(stored->stored, step) << stored->refusal;
    }
    const auto until = std::chrono::steady_clock::now() + kNvmeTestPatience;
    for (uint64_t durable = 0; durable < *already + keys.size();) {
      const auto polled = client->Poll(100);
      ASSERT_TRUE(polled.ok()) << polled.status();
      durable = *polled;
      ASSERT_LT(std::chrono::steady_clock::now(), until) << durable << " blocks are durable";
    }
  }
  static Census Ask(bench::BenchClient* client, std::span<const BlockKey> keys) {
    Census census;
    for (const BlockKey& key : keys) {
      auto found = client->Lookup({&key, 1});
      EXPECT_TRUE(found.ok()) << found.status();
      if (!found.ok()) return census;
      const auto compared = bench::LoadAndCompare(client, {&key, 1}, *std::move(found));
      EXPECT_TRUE(compared.ok()) << compared.status();
      if (!compared.ok()) return census;
      EXPECT_EQ(compared->refused, 0u);
      census.right += compared->blocks == 1 && compared->wrong_bytes == 0;
      census.missed += compared->blocks == 0;
      census.wrong_bytes += compared->wrong_bytes;
      census.from_nvme += compared->from_nvme;
    }
    return census;
  }

  // The sum of a metric's samples whose line begins with `prefix`: the name, and labels as far as they matter.
  double Metric(const std::string& prefix) const {
    const std::string text = Scrape();
    double sum = 0;
    for (size_t at = text.find("\n" + prefix); at != std::string::npos; at = text.find("\n" + prefix, at + 1)) {
      const size_t value = text.find(' ', at);
      sum += std::strtod(text.c_str() + value, nullptr);
    }
    return sum;
  }
  // `true_now` is asked until it is so.
  template <typename Condition>
  static void Until(const std::string& what, Condition true_now) {
    const auto until = std::chrono::steady_clock::now() + kNvmeTestPatience;
    while (!true_now()) ASSERT_LT(std::chrono::steady_clock::now(), until) << what;
  }

  // Where the headers of blocks begin in the data file, by the bytes of the key (docs/ON_DISK_FORMAT.md).
  std::map<std::string, uint64_t> Headers() const {
    constexpr size_t kKeyAt = 16;
    std::map<std::string, uint64_t> headers;
    std::ifstream file(daemon_.nvme_path(), std::ios::binary);
    file.seekg(kNvmeDataStartBytes);
    std::string page(kSlotAlignBytes, '\0');
    for (uint64_t at = kNvmeDataStartBytes; file.read(page.data(), static_cast<std::streamsize>(page.size()));
         at += page.size()) {
      if (page.starts_with("KVARTALB")) headers[page.substr(kKeyAt, kBlockKeyBytes)] = at;
    }
    return headers;
  }
  static std::string BytesOf(const BlockKey& key) {
    return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()};
  }
  // 0: nowhere.
  uint64_t HeaderOf(const BlockKey& key) const {
    const auto headers = Headers();
    const auto found = headers.find(BytesOf(key));
    return found == headers.end() ? 0 : found->second;
  }
  void FlipBit(uint64_t offset) const {
    std::fstream file(daemon_.nvme_path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 0x10));
    file.close();
    ASSERT_TRUE(file.good());
  }

  DaemonProcess daemon_;
  std::unique_ptr<admin::AdminClient> admin_;
  std::unique_ptr<bench::BenchClient> client_;

 private:
  std::string Scrape() const {
    const std::string address = daemon_.ReadyWord("metrics");
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
    EXPECT_EQ(::write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
    std::string answer;
    char part[4096];
    for (ssize_t got = 0; (got = ::read(fd.get(), part, sizeof(part))) > 0;) {
      answer.append(part, static_cast<size_t>(got));
    }
    EXPECT_THAT(answer, ::testing::HasSubstr("200 OK"));
    return answer;
  }
};

}  // namespace kvartal::testing
