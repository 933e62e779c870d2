#include "tests/support/scripted_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::testing {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr auto kLongTime = std::chrono::seconds(60);

std::string VerbOf(const ScriptedServer::Request& request) {
  if (request.has_attach()) return "attach";
  if (request.has_open_namespace()) return "open_namespace";
  if (request.has_lookup()) return "lookup";
  if (request.has_load()) return "load";
  if (request.has_release()) return "release";
  if (request.has_reserve()) return "reserve";
  if (request.has_commit()) return "commit";
  if (request.has_abort()) return "abort";
  if (request.has_renew()) return "renew";
  if (request.has_detach()) return "detach";
  if (request.has_grant_ack()) return "grant_ack";
  if (request.has_pin()) return "pin";
  if (request.has_close_namespace()) return "close_namespace";
  if (request.has_hint()) return "hint";
  return "none";
}

UniqueFd MakeMemfd(const char* name, uint64_t bytes, bool sealed = true) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KV_CHECK(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (sealed) KV_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return fd;
}

}  // namespace

ScriptedServer::ScriptedServer() {
  char folder[] = "/tmp/kvartal-scripted-XXXXXX";
  KV_CHECK(::mkdtemp(folder) != nullptr);
  folder_ = folder;
  socket_path_ = folder_ + "/kvartal.sock";
  wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Start();
  thread_ = std::thread([this] { Run(); });
}

ScriptedServer::~ScriptedServer() {
  Kill();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  ::munmap(generations_, kArenaBytes / kPageBytes * sizeof(uint32_t));
  ::rmdir(folder_.c_str());
}

// --- what tests do

void ScriptedServer::SetScript(Script script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void ScriptedServer::SetGrantShape(const GrantShape& shape) {
  const std::lock_guard lock(mutex_);
  grant_shape_ = shape;
  arena_fd_ = MakeMemfd("scripted-arena", shape.arena_file_bytes, shape.arena_sealed);
}

void ScriptedServer::SetLeaseMs(uint32_t lease_ms) {
  const std::lock_guard lock(mutex_);
  lease_ms_ = lease_ms;
}

void ScriptedServer::Kill() {
  const std::lock_guard lock(mutex_);
  ::unlink(socket_path_.c_str());
  // The other thread's poll keeps a closed socket alive: it ends by a shutdown.
  if (listener_.valid()) ::shutdown(listener_.get(), SHUT_RDWR);
  listener_.reset();
  while (!connections_.empty()) Drop(connections_.begin()->first);
}

void ScriptedServer::Start() {
  const std::lock_guard lock(mutex_);
  MakeMemory();
  ++epoch_;
  groups_.clear();
  spaces_.clear();
  blocks_.clear();
  next_number_ = 1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KV_CHECK(socket_path_.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, socket_path_.c_str(), socket_path_.size() + 1);
  listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  KV_CHECK(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  KV_CHECK(::listen(listener_.get(), 64) == 0);
  Wake();
}

void ScriptedServer::Hang(bool hung) {
  const std::lock_guard lock(mutex_);
  hung_ = hung;
  Wake();
}

void ScriptedServer::CutConnections() {
  const std::lock_guard lock(mutex_);
  while (!connections_.empty()) Drop(connections_.begin()->first);
}

void ScriptedServer::ReleaseHeld() {
  const std::lock_guard lock(mutex_);
  for (const auto& [fd, bytes] : held_) ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  held_.clear();
}

bool ScriptedServer::Say(const Answer& unasked) { return SendRaw(unasked.SerializeAsString()); }

bool ScriptedServer::SendRaw(const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  return std::all_of(connections_.begin(), connections_.end(), [&](const auto& connection) {
    return ::send(connection.first, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
  });
}

void ScriptedServer::MoveBlocksToNvme() {
  const std::lock_guard lock(mutex_);
  for (auto& [key, block] : blocks_) block.in_nvme = true;
}

void ScriptedServer::FillArena(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::string zeros(bytes, '\0');
  KV_CHECK(::pwrite(arena_fd_.get(), zeros.data(), bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes));
}

void ScriptedServer::RaiseGenerations() {
  const std::lock_guard lock(mutex_);
  for (uint64_t page = 0; page < kArenaBytes / kPageBytes; ++page) {
    __atomic_fetch_add(&generations_[page], 1, __ATOMIC_RELEASE);
  }
}

bool ScriptedServer::WaitFor(const std::function<bool(const std::map<std::string, int>&)>& seen) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kLongTime, [&] { return seen(counts_); });
}

int ScriptedServer::count(const std::string& verb) {
  const std::lock_guard lock(mutex_);
  return counts_[verb];
}

int ScriptedServer::connections() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(connections_.size());
}

size_t ScriptedServer::live_leases() {
  const std::lock_guard lock(mutex_);
  return leases_.size();
}

size_t ScriptedServer::filling_slots() {
  const std::lock_guard lock(mutex_);
  return filling_.size();
}

size_t ScriptedServer::held_answers() {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

uint64_t ScriptedServer::arena_pages() {
  const std::lock_guard lock(mutex_);
  struct stat info{};
  KV_CHECK(::fstat(arena_fd_.get(), &info) == 0);
  return static_cast<uint64_t>(info.st_blocks) * 512 / kPageBytes;
}

// --- its thread

void ScriptedServer::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
}

void ScriptedServer::Run() {
  for (;;) {
    std::vector<pollfd> waits;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      waits.push_back({wake_fd_.get(), POLLIN, 0});
      if (!hung_ && listener_.valid()) waits.push_back({listener_.get(), POLLIN, 0});
      for (const auto& [fd, owner] : connections_) {
        if (!hung_) waits.push_back({fd, POLLIN, 0});
      }
    }
    ::poll(waits.data(), waits.size(), -1);
    const std::lock_guard lock(mutex_);
    uint64_t rings;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd_.get(), &rings, sizeof(rings));
    if (hung_) continue;
    for (const pollfd& wait : waits) {
      if (wait.revents == 0) continue;
      if (wait.fd == listener_.get()) Accept();
      if (connections_.contains(wait.fd)) ReadFrom(wait.fd);
    }
  }
}

void ScriptedServer::Accept() {
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  const int number = fd.get();
  connections_[number] = std::move(fd);
  ++counts_["connect"];
  changed_.notify_all();
}

void ScriptedServer::Drop(int fd) {
  std::erase_if(held_, [fd](const auto& held) { return held.first == fd; });
  ::shutdown(fd, SHUT_RDWR);
  connections_.erase(fd);
  Wake();
  if (connections_.empty()) {
    filling_.clear();
    leases_.clear();
    groups_.clear();
  }
  ++counts_["end"];
  changed_.notify_all();
}

void ScriptedServer::ReadFrom(int fd) {
  char buffer[1 << 16];
  const ssize_t got = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  Request request;
  if (got <= 0 || !request.ParseFromArray(buffer, static_cast<int>(got))) return Drop(fd);
  Handle(fd, request);
  ++counts_[VerbOf(request)];
  changed_.notify_all();
}

void ScriptedServer::Handle(int fd, const Request& request) {
  Answer answer;
  answer.set_request_id(request.request_id());
  Fill(request, &answer);
  const Fate fate = script_ ? script_(request, &answer) : Fate::kSend;
  if (fate == Fate::kDie) return Drop(fd);
  const bool has_answer = request.request_id() != 0;
  if (!has_answer || fate == Fate::kDrop) return;
  if (fate == Fate::kHold) {
    held_.emplace_back(fd, answer.SerializeAsString());
    return;
  }
  SendTo(fd, answer);
  if (answer.has_attached()) Grant(fd);
}

void ScriptedServer::SendTo(int fd, const Answer& answer) {
  const std::string bytes = answer.SerializeAsString();
  ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ScriptedServer::Grant(int fd) {
  Answer answer;
  attach::v1::MemoryGrant* grant = answer.mutable_memory_grant();
  grant->set_arena_bytes(grant_shape_.announced_bytes);
  grant->set_has_fds(true);
  grant->add_offsets(grant_shape_.range_offset);
  grant->add_bytes(2 << 20);
  std::string bytes = answer.SerializeAsString();
  const UniqueFd unsealed = MakeMemfd("scripted-unsealed", kArenaBytes / kPageBytes * sizeof(uint32_t), false);
  std::vector<int> fds = {arena_fd_.get(), grant_shape_.generations_sealed ? generation_fd_.get() : unsealed.get()};
  fds.resize(static_cast<size_t>(grant_shape_.fds), generation_fd_.get());
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ScriptedServer::MakeMemory() {
  constexpr size_t kTableBytes = kArenaBytes / kPageBytes * sizeof(uint32_t);
  if (generations_ != nullptr) ::munmap(generations_, kTableBytes);
  arena_fd_ = MakeMemfd("scripted-arena", kArenaBytes);
  generation_fd_ = MakeMemfd("scripted-generations", kTableBytes);
  void* table = ::mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, generation_fd_.get(), 0);
  KV_CHECK(table != MAP_FAILED);
  generations_ = static_cast<uint32_t*>(table);
  std::fill_n(generations_, kArenaBytes / kPageBytes, 7u);
  next_offset_ = 0;
}

// --- good answers

void ScriptedServer::Fill(const Request& request, Answer* answer) {
  for (const uint64_t lease : request.released()) leases_.erase(lease);
  if (request.has_attach()) AnswerAttach(request, answer);
  if (request.has_lookup()) AnswerLookup(request, answer);
  if (request.has_load()) AnswerLoad(request, answer);
  if (request.has_reserve()) AnswerReserve(request, answer);
  if (request.has_commit()) AnswerCommit(request, answer);
  if (request.has_pin()) answer->mutable_pinned();
  if (request.has_renew()) answer->mutable_renewed()->set_count(static_cast<uint32_t>(leases_.size()));
  if (request.has_release() && request.release().count() == 0) leases_.erase(request.release().lease());
  if (request.has_open_namespace()) {
    const attach::v1::OpenNamespace& open = request.open_namespace();
    const uint64_t stride = (open.shard_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
    spaces_.push_back({open.digest(), stride * open.shard_count(), stride});
    answer->mutable_namespace_opened()->set_ns(static_cast<uint32_t>(spaces_.size() - 1));
    answer->mutable_namespace_opened()->set_slot_bytes(static_cast<uint32_t>(stride * open.shard_count()));
    answer->mutable_namespace_opened()->set_shard_stride_bytes(static_cast<uint32_t>(stride));
  }
  if (request.has_abort()) {
    uint32_t aborted = 0;
    for (const uint64_t reservation : request.abort().reservations()) {
      aborted += static_cast<uint32_t>(filling_.erase(reservation));
    }
    answer->mutable_aborted()->set_count(aborted);
  }
}

void ScriptedServer::AnswerAttach(const Request& request, Answer* answer) {
  std::string group = request.attach().group();
  if (!group.empty() && request.attach().returning()) groups_.insert(group);
  if (!group.empty() && !groups_.contains(group)) {
    answer->mutable_error()->set_code(attach::v1::Error::NOT_FOUND);
    answer->mutable_error()->set_message("there is no such engine group (any more)");
    return;
  }
  if (group.empty()) {
    group = std::to_string(epoch_) + "-" + std::to_string(next_number_++);
    group.resize(16, 'g');
    groups_.insert(group);
  }
  attach::v1::Attached* attached = answer->mutable_attached();
  attached->set_version(1);
  attached->set_group(group);
  attached->set_tenant("team/scripted");
  attached->set_lease_ms(lease_ms_);
  attached->set_arena_bytes(kArenaBytes);
  attached->set_daemon_epoch("epoch-" + std::to_string(epoch_));
}

void ScriptedServer::AnswerLookup(const Request& request, Answer* answer) {
  const attach::v1::Lookup& lookup = request.lookup();
  attach::v1::LookedUp* found = answer->mutable_looked_up();
  found->set_request(lookup.request() != 0 ? lookup.request() : next_number_++);
  if (lookup.ns() >= spaces_.size()) return;
  std::vector<std::string> taken;
  for (size_t i = 0; i + kKeyBytes <= lookup.keys().size(); i += kKeyBytes) {
    const std::string key = spaces_[lookup.ns()].digest + lookup.keys().substr(i, kKeyBytes);
    const auto block = blocks_.find(key);
    if (block == blocks_.end()) break;
    found->mutable_tiers()->push_back(block->second.in_nvme ? 2 : 1);
    found->add_offsets(block->second.in_nvme ? 0 : block->second.offset);
    found->add_generations(block->second.in_nvme ? 0 : GenerationAt(block->second.offset));
    taken.push_back(key);
  }
  found->set_matched(static_cast<uint32_t>(taken.size()));
  if (taken.empty()) return;
  const uint64_t lease = lookup.lease() != 0 ? lookup.lease() : next_number_++;
  found->set_lease(lease);
  leases_[lease].insert(leases_[lease].end(), taken.begin(), taken.end());
}

void ScriptedServer::AnswerLoad(const Request& request, Answer* answer) {
  const attach::v1::Load& load = request.load();
  const auto lease = leases_.find(load.lease());
  if (lease == leases_.end()) {
    answer->mutable_error()->set_code(attach::v1::Error::NOT_FOUND);
    answer->mutable_error()->set_message("no such lease");
    return;
  }
  attach::v1::Loaded* loaded = answer->mutable_loaded();
  loaded->set_first(load.first());
  for (uint32_t i = load.first(); i < load.first() + load.count() && i < lease->second.size(); ++i) {
    Block& block = blocks_[lease->second[i]];
    block.in_nvme = false;
    loaded->add_offsets(block.offset);
    loaded->add_generations(GenerationAt(block.offset));
  }
  loaded->set_count(static_cast<uint32_t>(loaded->offsets_size()));
}

void ScriptedServer::AnswerReserve(const Request& request, Answer* answer) {
  const attach::v1::Reserve& reserve = request.reserve();
  attach::v1::Reserved* reserved = answer->mutable_reserved();
  const Space space = reserve.ns() < spaces_.size() ? spaces_[reserve.ns()] : Space{};
  for (size_t i = 0; i + kKeyBytes <= reserve.keys().size(); i += kKeyBytes) {
    const std::string key = space.digest + reserve.keys().substr(i, kKeyBytes);
    const bool full = next_offset_ + space.slot_bytes > kArenaBytes;
    const bool granted = !blocks_.contains(key) && !full;
    reserved->mutable_outcomes()->push_back(granted ? 0 : full ? 2 : 1);
    if (full) reserved->set_refusal("capacity");
    const uint64_t number = granted ? next_number_++ : 0;
    reserved->add_reservations(number);
    reserved->add_offsets(granted ? next_offset_ + reserve.shard() * space.stride_bytes : 0);
    reserved->add_generations(granted ? GenerationAt(next_offset_) : 0);
    if (!granted) continue;
    filling_[number] = {key, next_offset_};
    next_offset_ += space.slot_bytes;
  }
}

void ScriptedServer::AnswerCommit(const Request& request, Answer* answer) {
  std::string* outcomes = answer->mutable_committed()->mutable_outcomes();
  for (const uint64_t reservation : request.commit().reservations()) {
    const auto slot = filling_.find(reservation);
    outcomes->push_back(slot == filling_.end() ? 2 : 0);
    if (slot == filling_.end()) continue;
    blocks_[slot->second.key] = {slot->second.offset, false};
    filling_.erase(slot);
  }
}

}  // namespace kvartal::testing
