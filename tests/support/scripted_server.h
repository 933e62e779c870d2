// A daemon for tests of the client: keeps blocks in a real memfd arena and answers well, unless a script decides
// otherwise. Any thread may call it; the script runs on the server's thread. Invariant: every request is answered,
// held, dropped or answered by a death before the next is read.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/attach/attach.pb.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::testing {

class ScriptedServer {
 public:
  using Request = attach::v1::ClientFrame;
  using Answer = attach::v1::ServerFrame;
  enum class Fate {
    kSend,
    kDrop,  // never answered
    kHold,  // until ReleaseHeld
    kDie,   // the connection is closed instead
  };
  // May change the answer before it meets its fate.
  using Script = std::function<Fate(const Request& request, Answer* answer)>;

  static constexpr uint64_t kArenaBytes = 64ull << 20;
  static constexpr uint64_t kPageBytes = 4096;

  // What the first grant of a session looks like.
  struct GrantShape {
    int fds = 2;
    uint64_t announced_bytes = kArenaBytes;
    uint64_t arena_file_bytes = kArenaBytes;
    uint64_t range_offset = 0;
    bool arena_sealed = true;
    bool generations_sealed = true;
  };

  ScriptedServer();
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  void SetScript(Script script);
  void SetGrantShape(const GrantShape& shape);
  void SetLeaseMs(uint32_t lease_ms);

  // The daemon dies: no socket, no connections. Its memory lives as long as somebody maps it.
  void Kill();
  // A new daemon: another epoch, an empty arena, no groups.
  void Start();
  // Listens but never accepts nor reads: a hung daemon.
  void Hang(bool hung);
  void CutConnections();
  void ReleaseHeld();
  // To every connection; false when one does not take it.
  bool Say(const Answer& unasked);
  bool SendRaw(const std::string& bytes);
  // Every block is in NVMe until it is loaded.
  void MoveBlocksToNvme();
  // Memory is there in [offset, offset + bytes) of the arena; elsewhere are holes until somebody writes.
  void FillArena(uint64_t offset, uint64_t bytes);
  // The bytes of every slot are dead: what a reclaim under an expired lease does.
  void RaiseGenerations();

  // Waits until `seen` holds of the counts of requests by verb ("lookup", "renew", ...); false after a long time.
  bool WaitFor(const std::function<bool(const std::map<std::string, int>&)>& seen);
  int count(const std::string& verb);
  int connections();
  size_t live_leases();
  size_t filling_slots();
  size_t held_answers();
  // How much of the arena is there, whoever allocated it.
  uint64_t arena_pages();

 private:
  struct Block {
    uint64_t offset = 0;
    bool in_nvme = false;
  };
  struct Slot {
    std::string key;
    uint64_t offset = 0;
  };
  struct Space {
    std::string digest;
    uint64_t slot_bytes = 0;
    uint64_t stride_bytes = 0;
  };

  void Run();
  void Accept();
  void ReadFrom(int fd);
  void Drop(int fd);
  void Handle(int fd, const Request& request);
  void SendTo(int fd, const Answer& answer);
  void Grant(int fd);
  void MakeMemory();
  void Wake();

  void AnswerAttach(const Request& request, Answer* answer);
  void AnswerLookup(const Request& request, Answer* answer);
  void AnswerLoad(const Request& request, Answer* answer);
  void AnswerReserve(const Request& request, Answer* answer);
  void AnswerCommit(const Request& request, Answer* answer);
  void Fill(const Request& request, Answer* answer);
  uint32_t GenerationAt(uint64_t offset) const { return generations_[offset / kPageBytes]; }

  std::string folder_, socket_path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, all that follows.
  bool stopping_ = false;
  bool hung_ = false;
  UniqueFd wake_fd_, listener_;
  std::map<int, UniqueFd> connections_;
  std::vector<std::pair<int, std::string>> held_;
  Script script_;
  GrantShape grant_shape_;
  uint32_t lease_ms_ = 10000;
  std::map<std::string, int> counts_;

  uint64_t epoch_ = 0;
  UniqueFd arena_fd_, generation_fd_;
  uint32_t* generations_ = nullptr;
  uint64_t next_offset_ = 0;
  uint64_t next_number_ = 1;
  std::vector<Space> spaces_;
  std::set<std::string> groups_;
  std::map<std::string, Block> blocks_;  // by digest and key
  std::map<uint64_t, Slot> filling_;
  std::map<uint64_t, std::vector<std::string>> leases_;

  std::thread thread_;
};

}  // namespace kvartal::testing
