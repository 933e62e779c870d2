#include "client/libkvartal/session.h"

#include <algorithm>
#include <utility>

#include "client/libkvartal/token_file.h"

namespace kvartal::client {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

// Whatever the daemon says, it is a time.
int64_t IdentityNs(uint64_t identity_ms) {
  constexpr uint64_t kMsMax = uint64_t{kSecondsMax} * 1000;
  return static_cast<int64_t>(std::min(identity_ms, kMsMax)) * kNsPerMs;
}

// Keeps the count of reads odd while it lives.
class ReadingMark {
 public:
  explicit ReadingMark(std::atomic<uint64_t>* reads) : reads_(reads) {
    reads_->fetch_add(1, std::memory_order_relaxed);
  }
  ~ReadingMark() { reads_->fetch_add(1, std::memory_order_relaxed); }
  ReadingMark(const ReadingMark&) = delete;
  ReadingMark& operator=(const ReadingMark&) = delete;

 private:
  std::atomic<uint64_t>* const reads_;
};

}  // namespace

Session::Session(std::unique_ptr<Connection> connection, std::shared_ptr<Bell> bell, std::shared_ptr<ArenaSet> arenas)
    : connection_(std::move(connection)),
      bell_(std::move(bell)),
      arenas_(std::move(arenas)),
      lease_ms_(kLeaseMsDefault),
      send_buffer_(new char[kFrameBytesMax]),
      receive_buffer_(new char[kFrameBytesMax]),
      keeper_buffer_(new char[kFrameBytesMax]) {
  abandoned_lookups_.reserve(kAbandonedLookupsMax);
  released_.reserve(kHeldReleasesMax);
}

Session::~Session() { connection_->Shutdown(); }

void Session::End() {
  over_.store(true, std::memory_order_release);
  connection_->Shutdown();
}

// --- calling thread

wire::ClientFrame* Session::NewRequest() {
  request_.Clear();
  request_.set_request_id(NextId());
  return &request_;
}

IoResult Session::Call(const Deadline& deadline) {
  const bool has_turn = AwaitTurn(deadline);
  const size_t bytes = request_.ByteSizeLong();
  const std::lock_guard lock(receive_mutex_);
  const ReadingMark mark(&reads_);
  sent_ = false;
  if (bytes > kFrameBytesMax) {
    KeepReleases();
    failure_ = "a request of " + std::to_string(bytes) + " bytes does not fit a frame";
    return IoResult::kTimedOut;
  }
  request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(send_buffer_.get()));
  switch (has_turn ? connection_->Send(send_buffer_.get(), bytes, &deadline) : IoResult::kTimedOut) {
    case IoResult::kOk:
      sent_ = true;
      return AwaitAnswer(&deadline);
    case IoResult::kTimedOut:
      KeepReleases();
      failure_ = "the daemon takes no more requests on this connection and the deadline passed";
      if (++silent_calls_ >= kSilentCallsMax) End();
      return IoResult::kTimedOut;
    default:
      // The daemon's reason may still lie there: read to the end.
      return AwaitAnswer(nullptr);
  }
}

IoResult Session::AwaitAnswer(const Deadline* deadline) {
  for (;;) {
    IoResult result;
    const Heard heard = ReceiveOne(receive_buffer_.get(), &answer_, request_.request_id(), deadline, &result);
    if (result == IoResult::kTimedOut) return deadline != nullptr ? Abandon() : Fail(IoResult::kClosed);
    if (result != IoResult::kOk) return Fail(result);
    if (heard == Heard::kAnswer) break;
    // A daemon that only ever says other things must not hold the call.
    if (deadline != nullptr && deadline->passed()) return Abandon();
  }
  ShowNews();
  return IoResult::kOk;
}

void Session::ShowNews() {
  arena_seen_ = arena_;
  durable_news_ = !durable_.empty() || durable_uncounted_ > 0;
}

bool Session::Tell() {
  {
    const std::lock_guard lock(keeper_mutex_);
    if (!SendUntoldAndReleases()) return false;
  }
  request_.set_request_id(0);
  const size_t bytes = request_.ByteSizeLong();
  if (bytes > kFrameBytesMax) return false;
  request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(send_buffer_.get()));
  return connection_->Send(send_buffer_.get(), bytes, nullptr) == IoResult::kOk;
}

void Session::TellSurely() {
  request_.set_request_id(0);
  if (SendOrKeep(request_)) return;
  const std::lock_guard lock(receive_mutex_);
  GiveUp();
}

void Session::AbortSurely(std::span<const uint64_t> reservations) {
  if (AbortOrKeep(reservations)) return;
  const std::lock_guard lock(receive_mutex_);
  GiveUp();
}

void Session::GiveBack(uint64_t lease) {
  const std::lock_guard lock(keeper_mutex_);
  released_.push_back(lease);
  const bool waits = !keeper_sleeps_ && released_.size() < kHeldReleasesMax;
  if (!waits && !SendUntoldAndReleases()) WakeKeeper();
}

bool Session::AwaitTurn(const Deadline& deadline) {
  for (;;) {
    {
      const std::lock_guard lock(keeper_mutex_);
      WakeKeeper();
      if (SendUntold()) {
        request_.mutable_released()->Add(released_.begin(), released_.end());
        released_.clear();
        return true;
      }
    }
    if (!connection_->AwaitRoom(deadline)) return false;
  }
}

void Session::KeepReleases() {
  const std::lock_guard lock(keeper_mutex_);
  released_.insert(released_.end(), request_.released().begin(), request_.released().end());
}

bool Session::SendOrKeep(const wire::ClientFrame& frame) {
  const std::lock_guard lock(keeper_mutex_);
  if (SendUntold() && SendAside(frame) != IoResult::kTimedOut) return true;
  WakeKeeper();
  const auto same_lease = [&](const wire::ClientFrame& kept) {
    return kept.has_release() && kept.release().lease() == frame.release().lease();
  };
  // A program may go on with a chain for as long as it likes: its windows add up to one Release.
  if (const auto kept = std::find_if(untold_.begin(), untold_.end(), same_lease);
      frame.has_release() && kept != untold_.end()) {
    kept->mutable_release()->set_count(kept->release().count() + frame.release().count());
    return true;
  }
  if (untold_.size() == kUntoldFramesMax) return false;
  untold_.push_back(frame);
  return true;
}

bool Session::AbortOrKeep(std::span<const uint64_t> reservations) {
  wire::ClientFrame frame;
  frame.set_request_id(NextId());
  frame.mutable_abort()->mutable_reservations()->Add(reservations.begin(), reservations.end());
  return SendOrKeep(frame);
}

bool Session::SendUntold() {
  for (; !untold_.empty(); untold_.pop_front()) {
    if (SendAside(untold_.front()) == IoResult::kTimedOut) return false;
  }
  return true;
}

bool Session::SendUntoldAndReleases() {
  if (!SendUntold()) return false;
  if (released_.empty()) return true;
  wire::ClientFrame frame;
  frame.mutable_release()->set_lease(released_.back());
  frame.mutable_released()->Add(released_.begin(), released_.end() - 1);
  if (SendAside(frame) == IoResult::kTimedOut) return false;
  released_.clear();
  return true;
}

void Session::WakeKeeper() {
  if (std::exchange(keeper_sleeps_, false)) bell_->Ring();
}

IoResult Session::Listen(const Deadline& deadline) {
  const std::lock_guard lock(receive_mutex_);
  const ReadingMark mark(&reads_);
  IoResult result;
  // What the keeper read meanwhile is news too.
  bool heard_any = !durable_.empty() || durable_uncounted_ > 0;
  const Deadline* wait = heard_any ? nullptr : &deadline;
  for (uint32_t i = 0; i < kKeeperFramesMax; ++i) {
    ReceiveOne(receive_buffer_.get(), &answer_, 0, wait, &result);
    if (result != IoResult::kOk) break;
    heard_any = true;
    wait = nullptr;
  }
  ShowNews();
  if (result == IoResult::kClosed || result == IoResult::kBadFrame) return Fail(result);
  return heard_any ? IoResult::kOk : IoResult::kTimedOut;
}

IoResult Session::Violation(const std::string& what) {
  const std::lock_guard lock(receive_mutex_);
  reason_ = what;
  return Fail(IoResult::kBadFrame);
}

std::string Session::EndReason() {
  const std::lock_guard lock(receive_mutex_);
  return reason_;
}

IoResult Session::Fail(IoResult result) {
  End();
  failure_ = result == IoResult::kBadFrame ? "the daemon broke the protocol" : "the daemon closed the connection";
  if (!reason_.empty()) failure_ += ": " + reason_;
  return result;
}

IoResult Session::Abandon() {
  failure_ = "the daemon did not answer before the deadline";
  if (request_.has_lookup() && request_.lookup().lease() == 0) abandoned_lookups_.push_back(request_.request_id());
  if (++silent_calls_ >= kSilentCallsMax || abandoned_lookups_.size() >= kAbandonedLookupsMax) {
    failure_ +=
        ", " + std::to_string(silent_calls_) + " times in a row: it counts as hung and the connection is given up";
    End();
  }
  return IoResult::kTimedOut;
}

uint64_t Session::TakeDurable(std::vector<uint64_t>* reservations) {
  const std::lock_guard lock(receive_mutex_);
  const uint64_t count = durable_.size() + std::exchange(durable_uncounted_, 0);
  reservations->insert(reservations->end(), durable_.begin(), durable_.end());
  durable_.clear();
  durable_news_ = false;
  return count;
}

void Session::AddLease(uint64_t lease) {
  const std::lock_guard lock(keeper_mutex_);
  leases_.push_back(lease);
}

void Session::DropLease(uint64_t lease) {
  const std::lock_guard lock(keeper_mutex_);
  // From the back: a lease just taken is the likeliest to end.
  for (size_t i = leases_.size(); i-- > 0;) {
    if (leases_[i] != lease) continue;
    leases_[i] = leases_.back();
    leases_.pop_back();
    return;
  }
}

// --- what comes in

Session::Heard Session::ReceiveOne(char* buffer, wire::ServerFrame* frame, uint64_t awaited, const Deadline* deadline,
                                   IoResult* result) {
  ReceivedFds fds;
  size_t bytes = 0;
  *result = connection_->Receive(buffer, &bytes, &fds, deadline);
  if (*result != IoResult::kOk) {
    if (*result == IoResult::kBadFrame)
      reason_ = "a frame was too long, or its fds were lost (is the limit of open files reached?)";
    return Heard::kOther;
  }
  if (!frame->ParseFromArray(buffer, static_cast<int>(bytes))) {
    *result = IoResult::kBadFrame;
    reason_ = "a frame could not be understood";
    return Heard::kViolation;
  }
  silent_calls_ = 0;
  const Heard heard = Handle(*frame, &fds, awaited);
  if (heard == Heard::kViolation) *result = IoResult::kBadFrame;
  return heard;
}

Session::Heard Session::Handle(const wire::ServerFrame& frame, ReceivedFds* fds, uint64_t awaited) {
  if (frame.request_id() == 0) return HandleUnasked(frame, fds);
  if (frame.request_id() == awaited) return Heard::kAnswer;
  if (frame.request_id() == identity_request_.load()) TakeRenewal(frame);
  HandBack(frame);
  return Heard::kOther;
}

Session::Heard Session::HandleUnasked(const wire::ServerFrame& frame, ReceivedFds* fds) {
  if (frame.has_memory_grant()) return TakeGrant(frame.memory_grant(), fds);
  if (frame.has_durable()) {
    const auto& reservations = frame.durable().reservations();
    const size_t room = kDurableBacklogMax - std::min(kDurableBacklogMax, durable_.size());
    const size_t kept = std::min<size_t>(room, static_cast<size_t>(reservations.size()));
    durable_.insert(durable_.end(), reservations.begin(), reservations.begin() + static_cast<int>(kept));
    durable_uncounted_ += static_cast<size_t>(reservations.size()) - kept;
  }
  if (frame.has_goodbye()) reason_ = "it said goodbye: " + frame.goodbye().reason();
  if (frame.has_error()) reason_ = frame.error().message();
  return Heard::kOther;
}

Session::Heard Session::TakeGrant(const wire::MemoryGrant& grant, ReceivedFds* fds) {
  if (over()) return Heard::kOther;
  if (grant.has_fds()) {
    if (fds->count != 2) {
      reason_ = "a memory grant came with " + std::to_string(fds->count) + " fds instead of 2";
      return Heard::kViolation;
    }
    arena_ = arenas_->Use(fds->fds[0], fds->fds[1], grant.arena_bytes(), &reason_);
    if (arena_ == nullptr) return Heard::kViolation;
    {
      const std::lock_guard lock(keeper_mutex_);
      arena_to_populate_ = arena_;
    }
    wire::ClientFrame ack;
    ack.mutable_grant_ack();
    SendAside(ack);
  }
  if (arena_ == nullptr || grant.offsets_size() != grant.bytes_size()) {
    reason_ = "a memory grant names ranges of no arena";
    return Heard::kViolation;
  }
  for (int i = 0; i < grant.offsets_size(); ++i) {
    if (arena_->AddGranted(grant.offsets(i), grant.bytes(i))) continue;
    reason_ = "a memory grant names a range outside its arena";
    return Heard::kViolation;
  }
  bell_->Ring();
  return Heard::kOther;
}

void Session::HandBack(const wire::ServerFrame& late) {
  if (const auto found = std::find(abandoned_lookups_.begin(), abandoned_lookups_.end(), late.request_id());
      found != abandoned_lookups_.end()) {
    abandoned_lookups_.erase(found);
    if (late.looked_up().lease() != 0) GiveBack(late.looked_up().lease());
  }
  std::vector<uint64_t> granted;
  for (const uint64_t reservation : late.reserved().reservations()) {
    if (reservation != 0) granted.push_back(reservation);
  }
  if (!granted.empty() && !AbortOrKeep(granted)) GiveUp();
}

void Session::GiveUp() {
  reason_ = "it takes nothing of what it is told, and counts as hung";
  End();
}

IoResult Session::SendAside(const wire::ClientFrame& frame) {
  const std::string bytes = frame.SerializeAsString();
  return connection_->Send(bytes.data(), bytes.size(), nullptr);
}

// --- keeper's thread

void Session::RenewLeases() {
  keeper_request_.Clear();
  {
    const std::lock_guard lock(keeper_mutex_);
    if (leases_.empty()) return;
    const size_t count = std::min(leases_.size(), kLeasesPerGroupMax);
    keeper_request_.mutable_renew()->mutable_leases()->Add(leases_.begin(),
                                                           leases_.begin() + static_cast<ptrdiff_t>(count));
  }
  keeper_request_.set_request_id(NextId());
  SendAside(keeper_request_);
}

void Session::KeepIdentity(const std::string& token_path, uint64_t identity_ms) {
  if (identity_ms == 0) return;
  token_path_ = token_path;
  token_ = request_.attach().token();
  identity_until_ns_.store(Deadline::NowNs() + IdentityNs(identity_ms));
}

void Session::RenewIdentity() {
  std::string token, error;
  // A file that is being replaced is there at the next look.
  if (token_path_.empty() || !ReadTokenFile(token_path_, &token, &error)) return;
  // What was sent and not taken is sent again: its key may be newer than the daemon's.
  if (token == token_ && (token_request_ == 0 || token_request_ == identity_accepted_.load())) return;
  keeper_request_.Clear();
  keeper_request_.mutable_renew()->set_token(token);
  token_request_ = NextId();
  keeper_request_.set_request_id(token_request_);
  token_ = std::move(token);
  identity_request_.store(token_request_);
  SendAside(keeper_request_);
}

void Session::TakeRenewal(const wire::ServerFrame& answer) {
  if (!answer.has_renewed()) return;
  identity_accepted_.store(answer.request_id());
  identity_until_ns_.store(Deadline::NowNs() + IdentityNs(answer.renewed().identity_ms()));
}

int64_t Session::NextIdentityLookNs() const {
  const int64_t until_ns = identity_until_ns_.load();
  if (until_ns == 0) return INT64_MAX / 2;
  return std::clamp((until_ns - Deadline::NowNs()) / kTokenLookParts, kTokenLookMsMin * kNsPerMs,
                    kTokenLookMsMax * kNsPerMs);
}

bool Session::Tick() {
  const uint64_t reads = reads_.load(std::memory_order_relaxed);
  const bool quiet = reads == std::exchange(reads_seen_, reads) && reads % 2 == 0;
  bool all_told;
  {
    const std::lock_guard lock(keeper_mutex_);
    all_told = SendUntoldAndReleases();
    keeper_sleeps_ = quiet && all_told;
  }
  if (quiet) Drain();
  return quiet && all_told;
}

void Session::Drain() {
  if (!receive_mutex_.try_lock()) return;
  const std::lock_guard lock(receive_mutex_, std::adopt_lock);
  for (uint32_t i = 0; i < kKeeperFramesMax; ++i) {
    IoResult result;
    ReceiveOne(keeper_buffer_.get(), &keeper_frame_, 0, nullptr, &result);
    if (result == IoResult::kTimedOut) return;
    if (result != IoResult::kOk) {
      End();
      return;
    }
  }
}

void Session::LeaveArena() {
  const std::lock_guard lock(receive_mutex_);
  arena_ = nullptr;
  const std::lock_guard keeper_lock(keeper_mutex_);
  arena_to_populate_ = nullptr;
}

bool Session::PopulatePart() {
  std::shared_ptr<ArenaMap> arena;
  {
    const std::lock_guard lock(keeper_mutex_);
    arena = arena_to_populate_;
  }
  return arena != nullptr && arena->PopulatePart();
}

}  // namespace kvartal::client
