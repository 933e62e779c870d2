#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tools/admin/admin_client.h"
#include "tools/kvartalctl/commands.h"
#include "tools/kvartalctl/explain_text.h"

namespace kvartal::ctl {
namespace {

namespace pb = admin::v1;

std::string UsedOf(const pb::Tenant& tenant, const char* tier_name) {
  for (const pb::TenantTier& tier : tenant.tiers()) {
    if (tier.name() != tier_name) continue;
    if (tier.limit_bytes() == 0 && tier.charged_bytes() == 0) return "-";
    // A limit without bound is the whole 64-bit range.
    const bool bounded = tier.limit_bytes() != UINT64_MAX;
    return absl::StrCat(HumanBytes(tier.charged_bytes()), " / ", bounded ? HumanBytes(tier.limit_bytes()) : "no limit");
  }
  return "-";
}

uint64_t SumOf(const pb::Tenant& tenant, uint64_t (pb::TenantTier::*field)() const) {
  uint64_t sum = 0;
  for (const pb::TenantTier& tier : tenant.tiers()) sum += (tier.*field)();
  return sum;
}

uint64_t RefusalsOf(const pb::Tenant& tenant) {
  uint64_t sum = 0;
  for (const pb::TenantTier& tier : tenant.tiers()) {
    for (const auto& [reason, count] : tier.refusals()) sum += count;
  }
  return sum;
}

// What its blocks on NVMe are encrypted under.
std::string KeyOf(const pb::Tenant& tenant) {
  if (!tenant.nvme_encrypted()) return "-";
  return tenant.nvme_key_id() == 0 ? "missing" : absl::StrCat(tenant.nvme_key_id());
}

void PrintTenantsTable(const pb::ListTenantsReply& reply) {
  Table table({"TENANT", "SESSIONS", "DRAM", "NVME", "BLOCKS", "BLOCK HITS", "TOKEN HITS", "STORED", "FROM NVME",
               "EVICTED", "EXPIRED", "REFUSED", "NVME KEY"});
  for (const pb::Tenant& tenant : reply.tenants()) {
    table.Add({tenant.removed() ? absl::StrCat(tenant.name(), " (removed)") : tenant.name(),
               HumanCount(tenant.sessions()), UsedOf(tenant, "dram"), UsedOf(tenant, "nvme"),
               HumanCount(tenant.entries()), HumanShare(tenant.blocks_hit(), tenant.blocks_asked()),
               HumanShare(tenant.tokens_hit(), tenant.tokens_asked()), HumanCount(tenant.blocks_stored()),
               HumanCount(tenant.blocks_loaded()), HumanCount(SumOf(tenant, &pb::TenantTier::evictions)),
               HumanCount(SumOf(tenant, &pb::TenantTier::expirations)), HumanCount(RefusalsOf(tenant)), KeyOf(tenant)});
  }
  std::printf("%s", table.Render().c_str());
}

void PrintSessionsTable(const pb::ListSessionsReply& reply) {
  Table table({"ID", "TENANT", "BY", "PID", "UID", "CLIENT", "GROUP", "AGE", "LEASES", "LEASED", "FILLING"});
  for (const pb::Session& session : reply.sessions()) {
    table.Add({absl::StrCat(session.id()), session.tenant().empty() ? "(not attached)" : session.tenant(),
               session.attestor(), absl::StrCat(session.pid()), absl::StrCat(session.uid()), session.client(),
               session.group(), HumanDuration(session.age_ms()), HumanCount(session.leases()),
               HumanCount(session.leased_blocks()), HumanCount(session.filling_blocks())});
  }
  std::printf("%s", table.Render().c_str());
}

// True when the person at the terminal types the tenant's name.
bool Confirmed(const std::string& tenant) {
  std::printf(
      "This deletes everything tenant %s has on this node: memory is punched, disk is zeroed.\nType its name to go "
      "on: ",
      tenant.c_str());
  std::fflush(stdout);
  std::string typed;
  return std::getline(std::cin, typed) && typed == tenant;
}

}  // namespace

int RunTenants(const Context& context) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  const absl::StatusOr<pb::ListTenantsReply> reply = client->ListTenants();
  if (!reply.ok()) return Complain(std::string(reply.status().message()));
  if (context.output == OutputFormat::kTable)
    PrintTenantsTable(*reply);
  else
    PrintData(context.output, ToJson(*reply));
  return 0;
}

int RunSessions(const Context& context) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  const absl::StatusOr<pb::ListSessionsReply> reply = client->ListSessions();
  if (!reply.ok()) return Complain(std::string(reply.status().message()));
  if (context.output == OutputFormat::kTable)
    PrintSessionsTable(*reply);
  else
    PrintData(context.output, ToJson(*reply));
  return 0;
}

int RunExplain(const Context& context, const std::string& tenant) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  const absl::StatusOr<pb::ExplainReply> reply = client->Explain(tenant);
  if (!reply.ok()) return Complain(absl::StrCat("explain: ", std::string(reply.status().message())));
  if (context.output == OutputFormat::kTable)
    std::printf("%s", ExplainText(*reply).c_str());
  else
    PrintData(context.output, ExplainJson(*reply));
  return 0;
}

int RunDrop(const Context& context, const std::string& tenant, bool yes) {
  absl::StatusOr<admin::AdminClient> client = admin::AdminClient::Connect(context.socket);
  if (!client.ok()) return Complain(std::string(client.status().message()));
  if (!yes && ::isatty(STDIN_FILENO) == 0) {
    return Complain("drop deletes data and nobody is at a terminal to confirm it: add --yes", 2);
  }
  if (!yes && !Confirmed(tenant)) return Complain("not dropped");
  const absl::StatusOr<pb::DropReply> reply = client->Drop(tenant);
  if (!reply.ok()) return Complain(absl::StrCat("drop: ", std::string(reply.status().message())));
  if (context.output != OutputFormat::kTable) {
    PrintData(context.output, {{"tenant", tenant}, {"bytes", reply->bytes()}});
  } else {
    std::printf("dropped %s: %s deleted\n", tenant.c_str(), HumanBytes(reply->bytes()).c_str());
  }
  return 0;
}

}  // namespace kvartal::ctl
