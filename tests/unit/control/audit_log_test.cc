#include "daemon/control/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/base/limits.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Keep = AuditEvent::Keep;

TEST(AuditEvent, IsOneLineOfJsonWhateverItsValuesHold) {
  const std::string line = AuditEvent("attach", Keep::kWritten)
                               .With("client", "a \"name\"\nwith \xff and \x01")
                               .With("pid", uint64_t{7})
                               .Line(1'700'000'000'123, 42);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_EQ(line.back(), '\n');
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["time"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(parsed["serial"], 42);
  EXPECT_EQ(parsed["event"], "attach");
  EXPECT_EQ(parsed["pid"], 7);
}

class AuditLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<AuditLog> Open() {
    auto log = AuditLog::Open(path_, &clock_);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  static std::vector<nlohmann::json> LinesOf(const std::string& path) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line, nullptr, false));
    return lines;
  }
  std::vector<std::string> EventsOf(const std::string& path) {
    std::vector<std::string> names;
    for (const nlohmann::json& line : LinesOf(path)) names.push_back(line.is_discarded() ? "torn" : line["event"]);
    return names;
  }

  testing::ScratchDir scratch_;
  ManualClock clock_;
  const std::string path_ = scratch_.path() + "/audit.jsonl";
};

TEST_F(AuditLogTest, EventsAreInOrderNumberedAndTheOwnersAlone) {
  auto log = Open();
  log->Write(AuditEvent("attach", Keep::kWritten).With("tenant", "red/cache"));
  log->Write(AuditEvent("policy", Keep::kSynced).With("version", "abc"));
  log.reset();
  EXPECT_THAT(EventsOf(path_), ElementsAre("open", "attach", "policy", "close"));
  const auto lines = LinesOf(path_);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["serial"], i + 1);
  EXPECT_EQ(lines[1]["tenant"], "red/cache");
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AuditLogTest, ARestartAppends) {
  Open().reset();
  Open().reset();
  EXPECT_THAT(EventsOf(path_), ElementsAre("open", "close", "open", "close"));
}

TEST_F(AuditLogTest, ARotationGoesOnInANewFile) {
  auto log = Open();
  log->Write(AuditEvent("attach", Keep::kWritten));
  // Until the log is told, it writes to the file that was renamed.
  log->Reopen();
  log->Write(AuditEvent("deny", Keep::kWritten));
  log.reset();
  EXPECT_THAT(EventsOf(path_), ElementsAre("open", "attach", "reopen", "deny", "close"));

  log = Open();
  std::filesystem::rename(path_, path_ + ".1");
  log->Reopen();
  log->Write(AuditEvent("drop", Keep::kSynced));
  log.reset();
  EXPECT_EQ(EventsOf(path_ + ".1").back(), "open");
  EXPECT_THAT(EventsOf(path_), ElementsAre("reopen", "drop", "close"));
}

TEST_F(AuditLogTest, AFolderThatIsNotThereIsAnErrorThatNamesIt) {
  const auto log = AuditLog::Open(scratch_.path() + "/none/audit.jsonl", &clock_);
  ASSERT_FALSE(log.ok());
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("/none/audit.jsonl: No such file or directory"));
}

TEST_F(AuditLogTest, WhatIsNoFileIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(AuditLog::Open(path_, &clock_).ok());
  const auto device = AuditLog::Open("/dev/null", &clock_);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("/dev/null: is not a regular file"));
}

TEST_F(AuditLogTest, AFileOthersCouldReadIsMadeTheOwnersAlone) {
  std::ofstream(path_) << "";
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  Open().reset();
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// A file that may not grow stands for a full disk.
TEST_F(AuditLogTest, WhatADiskDoesNotTakeIsCountedAndToldWhenItDoes) {
  std::signal(SIGXFSZ, SIG_IGN);
  auto log = Open();
  log->Write(AuditEvent("attach", Keep::kWritten));
  log.reset();
  const uint64_t size = std::filesystem::file_size(path_);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {size + 10, before.rlim_max};  // ten bytes of the next line, and no more
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  log = Open();
  for (int i = 0; i < 3; ++i) log->Write(AuditEvent("deny", Keep::kWritten));
  while (log->lost() < 4) std::this_thread::yield();  // its "open" and the three
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  log->Write(AuditEvent("drop", Keep::kSynced));
  log.reset();
  const auto lines = LinesOf(path_);
  EXPECT_THAT(EventsOf(path_), ElementsAre("open", "attach", "close", "torn", "lost", "drop", "close"));
  EXPECT_EQ(lines[4]["count"], 4);
}

TEST_F(AuditLogTest, AStormAtTheDoorsLosesNoReceipt) {
  auto log = Open();
  // The writer is held up in the first event's answer: nothing leaves the queue.
  std::promise<void> go_on;
  log->Write(AuditEvent("policy", Keep::kSynced), [held = go_on.get_future().share()](bool) { held.wait(); });
  for (size_t i = 0; i < 2 * kAuditQueueMax; ++i) log->Write(AuditEvent("deny", Keep::kWritten));
  EXPECT_GT(log->lost(), kAuditQueueMax) << "the storm is larger than its part of the queue";
  std::atomic<size_t> kept{0};
  constexpr size_t kReceipts = kAuditQueueMax - kAuditDoorQueueMax - 1;
  const uint64_t lost = log->lost();
  for (size_t i = 0; i < kReceipts; ++i) {
    log->Write(AuditEvent("deletion", Keep::kSynced), [&](bool is_kept) { kept += is_kept ? 1 : 0; });
  }
  EXPECT_EQ(log->lost(), lost);
  go_on.set_value();
  log.reset();
  EXPECT_EQ(kept.load(), kReceipts);
  const std::vector<std::string> events = EventsOf(path_);
  EXPECT_EQ(static_cast<size_t>(std::count(events.begin(), events.end(), "deletion")), kReceipts);
}

TEST_F(AuditLogTest, WhoAsksHearsThatAnEventIsNotKept) {
  auto full = Open();
  std::promise<void> go_on;
  full->Write(AuditEvent("policy", Keep::kSynced), [held = go_on.get_future().share()](bool) { held.wait(); });
  std::atomic<int> told{-1};
  for (size_t i = 0; i < kAuditQueueMax + 1; ++i) {
    full->Write(AuditEvent("deletion", Keep::kSynced), [&](bool is_kept) {
      if (!is_kept) told = 0;
    });
  }
  EXPECT_EQ(told.load(), 0) << "at once, since the queue is full";
  go_on.set_value();
  full.reset();
}

TEST_F(AuditLogTest, AFullQueueLosesAndTellsHowMany) {
  auto log = Open();
  uint64_t sent = 0;
  // Faster than any disk: the queue fills sooner or later.
  while (log->lost() == 0) {
    for (size_t i = 0; i < kAuditQueueMax; ++i, ++sent) log->Write(AuditEvent("policy", Keep::kSynced));
  }
  while (log->written() + log->lost() < sent) std::this_thread::yield();
  log->Write(AuditEvent("drop", Keep::kSynced));
  const uint64_t lost = log->lost();
  log.reset();
  uint64_t kept = 0, told = 0, serial = 0;
  for (const nlohmann::json& line : LinesOf(path_)) {
    kept += line["event"] == "policy";
    if (line["event"] == "lost") told += line["count"].get<uint64_t>();
    EXPECT_EQ(line["serial"], ++serial);
  }
  EXPECT_EQ(kept + lost, sent);
  EXPECT_EQ(told, lost);
}

}  // namespace
}  // namespace kvartal::control
