// A real kvartald, and the kvartalctl that probes it, under the seccomp profile of the Helm chart: nothing they need is
// missing there, and io_uring is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/libkvartal/kvartal.hpp"
#include "tests/support/daemon_process.h"
#include "tests/support/deny.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kPatient = 20'000;

// Their numbers here, by the kernel's own header: "#define __NR_read 0".
std::map<std::string, uint32_t> CallNumbers() {
  std::map<std::string, uint32_t> numbers;
  for (const auto& line : absl::StrSplit(ReadFile("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    uint32_t number;
    if (words.size() == 3 && words[1].starts_with("__NR_") && absl::SimpleAtoi(words[2], &number))
      numbers[words[1].substr(5)] = number;
  }
  return numbers;
}

std::set<std::string> AllowedNames() {
  const auto profile =
      nlohmann::json::parse(ReadFile(std::string(KVARTAL_SOURCE_DIR) + "/charts/kvartal/files/seccomp.json"));
  EXPECT_EQ(profile.at("defaultAction"), "SCMP_ACT_ERRNO");
  std::set<std::string> names;
  for (const auto& rule : profile.at("syscalls")) {
    EXPECT_EQ(rule.at("action"), "SCMP_ACT_ALLOW");
    for (const auto& name : rule.at("names")) names.insert(name.get<std::string>());
  }
  return names;
}

std::vector<uint32_t> AllowedNumbers() {
  const auto numbers = CallNumbers();
  std::vector<uint32_t> allowed;
  for (const std::string& name : AllowedNames()) {
    // A newer call than this machine's header is one it does not have.
    if (const auto found = numbers.find(name); found != numbers.end()) allowed.push_back(found->second);
  }
  return allowed;
}

// How a program of ours ends under the profile.
int RunUnder(const std::vector<uint32_t>& allowed, std::vector<std::string> argv) {
  argv[0] = std::string(KVARTAL_BIN_DIR) + "/" + argv[0];
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> pointers;
    for (std::string& word : argv) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    AllowOnly(allowed);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(DaemonSeccompTest, TheDaemonServesUnderTheProfileOfTheChartWithIoUring) {
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // a sanitizer that looks for leaks traces the process
  const std::vector<uint32_t> allowed = AllowedNumbers();
  ASSERT_GT(allowed.size(), 100u) << "the header of the kernel's call numbers was not understood";
  DaemonOptions options;
  options.nvme_size = "64Mi";
  options.manifests = TenantManifest("own", "uid: " + std::to_string(::getuid()), "8Mi", "48Mi");
  options.more_config = "auditLog: audit.jsonl\n";
  options.in_child = [&allowed] { AllowOnly(allowed); };
  DaemonProcess daemon(options);
  const absl::Status started = daemon.Start();
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_THAT(daemon.Ctl({"status"}).out, HasSubstr("io_uring"));
  EXPECT_EQ(RunUnder(allowed, {"kvartalctl", "--socket", daemon.admin_socket(), "status"}), 0) << "what probes run";

  client::Client client;
  ASSERT_EQ(client.Attach(daemon.attach_socket(), "test", nullptr, kPatient), KV_OK) << client.error();
  const auto opened = client.OpenNamespace(client::Digest{7}, {16, 1, 65536}, kPatient);
  ASSERT_EQ(opened.status, KV_OK) << client.error();
  // More than memory holds, so that blocks come back from the disk.
  std::vector<client::Key> keys(300);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i][0] = static_cast<uint8_t>(i);
    keys[i][1] = static_cast<uint8_t>(i >> 8);
    keys[i][2] = 1;
    std::vector<kv_slot> slots(1);
    ASSERT_EQ(client.Reserve({.ns = opened.ns, .keys = {&keys[i], 1}}, slots, kPatient), KV_OK) << client.error();
    ASSERT_EQ(client.Commit(slots, 0, kPatient).count, 1u) << client.error();
  }
  auto found = client.Lookup(opened.ns, {keys.data(), 64}, 0, kPatient);
  ASSERT_EQ(found.matched, 64u);
  EXPECT_EQ(found.lease.Load(0, 64, kPatient).count, 64u) << client.error();
  EXPECT_EQ(daemon.Ctl({"drop", "--tenant", "test/own", "--yes"}).exit_code, 0);
  EXPECT_EQ(daemon.Ctl({"drain"}).exit_code, 0);
  daemon.Signal(SIGHUP);
  daemon.Signal(SIGTERM);
  const ExitState end = daemon.WaitForEnd();
  EXPECT_TRUE(end.exited && end.code == 0) << daemon.log();
  EXPECT_EQ(daemon.log().find("not permitted"), std::string::npos) << daemon.log();
  // Starts again over its files, which reads the catalog back.
  EXPECT_TRUE(daemon.Start().ok()) << daemon.log();
}

TEST(DaemonSeccompTest, WhatTheDaemonNeverCallsIsDenied) {
  const std::set<std::string> allowed = AllowedNames();
  for (const char* call : {"ptrace",
                           "mount",
                           "umount2",
                           "bpf",
                           "init_module",
                           "finit_module",
                           "kexec_load",
                           "setns",
                           "unshare",
                           "pivot_root",
                           "chroot",
                           "process_vm_readv",
                           "process_vm_writev",
                           "pidfd_getfd",
                           "perf_event_open",
                           "userfaultfd",
                           "keyctl",
                           "setuid",
                           "setgid",
                           "capset",
                           "reboot",
                           "mknod"}) {
    EXPECT_FALSE(allowed.contains(call)) << call;
    EXPECT_TRUE(CallNumbers().contains(call)) << call << ": a name that is none would never be found";
  }
}

}  // namespace
}  // namespace kvartal::testing
