#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/admin/admin_client.h"
#include "tools/kvartalctl/commands.h"

namespace kvartal::ctl {
namespace {

namespace pb = admin::v1;

std::string TierState(const pb::Tier& tier) {
  if (!tier.present()) return "none";
  return tier.healthy() ? "up" : "DOWN";
}

std::string DaemonState(const pb::StatusReply& status) {
  if (status.draining()) return "draining: no new stores";
  return status.recovering() ? "serving, nvme is being read back" : "serving";
}

std::string MetricsState(const pb::StatusReply& status) {
  if (!status.metrics_address().empty()) return absl::StrCat("http://", status.metrics_address(), "/metrics");
  return status.metrics_error().empty() ? "off" : absl::StrCat("OFF: ", status.metrics_error());
}

void PrintLine(const char* label, const std::string& text) { std::printf("%-10s %s\n", label, text.c_str()); }

void PrintStatusTable(const pb::StatusReply& status) {
  PrintLine("daemon", absl::StrCat("kvartald ", status.version(), ", pid ", status.pid(), ", up ",
                                   HumanDuration(status.uptime_ms()), ", ", DaemonState(status)));
  PrintLine("attach", status.attach_socket().empty() ? "(doors only)" : status.attach_socket());
  PrintLine("metrics", MetricsState(status));
  PrintLine("policy", absl::StrCat(status.policy_version(), ", ", Counted(status.tenants(), "tenant"), ", loaded ",
                                   HumanDuration(status.policy_age_ms()), " ago"));
  for (const absl::string_view line : absl::StrSplit(status.policy_error(), '\n', absl::SkipEmpty())) {
    PrintLine("REFUSED", absl::StrCat("what there is to be enforced now: ", line));
  }
  if (!status.policy_note().empty()) PrintLine("AWAY", status.policy_note());
  if (!status.audit_log().empty()) {
    PrintLine("audit", absl::StrCat(status.audit_log(), status.audit_lost() == 0
                                                            ? ""
                                                            : absl::StrCat(", ", HumanCount(status.audit_lost()),
                                                                           " EVENTS LOST: see the daemon's log")));
  }
  PrintLine("sessions", HumanCount(status.sessions()));
  PrintLine("index", absl::StrCat(HumanCount(status.entries()), " blocks, ", HumanBytes(status.index_bytes()), ", ",
                                  HumanCount(status.leased_blocks()), " leased"));
  PrintLine("under way", absl::StrCat(HumanCount(status.waiting_requests()), " reserves waiting, ",
                                      HumanCount(status.loads_under_way()), " loads, ",
                                      HumanCount(status.writes_under_way()), " writes"));
  if (!status.io_engine().empty()) {
    PrintLine("disk I/O", absl::StrCat(status.io_engine(), status.direct_io() ? ", O_DIRECT" : ", page cache"));
  }
  PrintLine("memory", absl::StrCat(HumanBytes(status.rss_bytes()), " of its own beside the arenas"));
  if (status.bugs() > 0)
    PrintLine("BUGS", absl::StrCat(HumanCount(status.bugs()), ": please report, with the daemon's log"));
  for (const auto& [reason, count] : status.attach_denials()) {
    PrintLine("denied", absl::StrCat(HumanCount(count), " attaches: ", reason));
  }
  Table tiers({"TIER", "STATE", "CAPACITY", "CHARGED", "USED", "RECLAIMING", "NOTE"});
  for (const pb::Tier& tier : status.tiers()) {
    tiers.Add({tier.name(), TierState(tier), HumanBytes(tier.capacity_bytes()), HumanBytes(tier.charged_bytes()),
               HumanShare(tier.charged_bytes(), tier.capacity_bytes()), HumanBytes(tier.reclaiming_bytes()),
               tier.note()});
  }
  std::printf("\n%s", tiers.Render().c_str());
  if (status.disks().empty()) return;
  Table disks({"DISK", "STATE", "CAPACITY", "USED", "QUEUED", "WRITTEN", "ERRORS", "NOTE"});
  for (const pb::Disk& disk : status.disks()) {
    disks.Add({disk.path(), disk.state(), HumanBytes(disk.capacity_bytes()), HumanBytes(disk.used_bytes()),
               HumanBytes(disk.queued_bytes()), HumanBytes(disk.written_bytes()),
               HumanCount(disk.read_errors() + disk.write_errors() + disk.mismatches()),
               status.disks_size() > 1 ? disk.note() : ""});
  }
  std::printf("\n%s", disks.Render().c_str());
}

}  // namespace

int RunStatus(const Context& context) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  const absl::StatusOr<pb::StatusReply> status = client->GetStatus();
  if (!status.ok()) return Complain(std::string(status.status().message()));
  if (context.output == OutputFormat::kTable)
    PrintStatusTable(*status);
  else
    PrintData(context.output, ToJson(*status));
  return 0;
}

int RunDrain(const Context& context) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  const absl::StatusOr<pb::DrainReply> reply = client->Drain();
  if (!reply.ok()) return Complain(absl::StrCat("drain: ", std::string(reply.status().message())));
  if (context.output == OutputFormat::kTable) {
    std::printf("drained: no new stores, everything durable is synced; restart the daemon to take stores again\n");
  } else {
    PrintData(context.output, {{"drained", true}});
  }
  return 0;
}

// The policy may be as good as any: it was not read, or is not known to be.
static bool WasNotJudged(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status) ||
         absl::IsUnavailable(status);
}

int RunReload(const Context& context) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  const absl::StatusOr<pb::ReloadPolicyReply> reply = client->ReloadPolicy();
  if (!reply.ok()) {
    const std::string why(reply.status().message());
    if (WasNotJudged(reply.status())) return Complain(absl::StrCat("not reloaded: ", why));
    return Complain(absl::StrCat("the policy was refused, the last good one stays in force:\n", why));
  }
  if (context.output != OutputFormat::kTable) {
    PrintData(context.output, ToJson(*reply));
    return 0;
  }
  std::printf("policy %s in force\n", reply->policy_version().c_str());
  for (const std::string& warning : reply->warnings()) std::printf("warning: %s\n", warning.c_str());
  return 0;
}

}  // namespace kvartal::ctl
