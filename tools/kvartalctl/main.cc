// kvartalctl: the admin's command line.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/policy/eviction_names.h"
#include "tools/command_line/words.h"
#include "tools/kvartalctl/commands.h"

namespace kvartal::ctl {
namespace {

constexpr const char* kDefaultSocket = "/run/kvartal/admin.sock";
constexpr int kExitUsage = 2;

// What the subcommands' own flags are parsed into.
struct Arguments {
  std::string tenant, path, config;
  bool yes = false;
};

void AddNodeCommands(CLI::App* app, const Context* context, std::function<int()>* run) {
  app->add_subcommand("status", "what the daemon is doing: tiers, policy, sessions, health")->callback([=] {
    *run = [=] { return RunStatus(*context); };
  });
  app->add_subcommand("drain",
                      "stop taking stores, wait for what is under way, sync; reads go on, stores only after a restart")
      ->callback([=] { *run = [=] { return RunDrain(*context); }; });
  app->add_subcommand("reload", "read the policy folder again")->callback([=] {
    *run = [=] { return RunReload(*context); };
  });
}

void AddTenantCommands(CLI::App* app, const Context* context, Arguments* arguments, std::function<int()>* run) {
  app->add_subcommand("tenants",
                      "what every tenant holds, hits and was refused; FROM NVME: blocks loaded from disk, without "
                      "those read in memory")
      ->callback([=] { *run = [=] { return RunTenants(*context); }; });
  app->add_subcommand("sessions", "who is connected and what they hold")->callback([=] {
    *run = [=] { return RunSessions(*context); };
  });
  CLI::App* explain =
      app->add_subcommand("explain", "what a tenant holds, may hold, and why it was refused or evicted");
  explain->add_option("--tenant", arguments->tenant, "the tenant, as <namespace>/<policy>")
      ->required()
      ->type_name("NAME");
  explain->callback([=] { *run = [=] { return RunExplain(*context, arguments->tenant); }; });
  CLI::App* drop = app->add_subcommand("drop", "delete everything of one tenant, provably");
  drop->add_option("--tenant", arguments->tenant, "the tenant, as <namespace>/<policy>")->required()->type_name("NAME");
  drop->add_flag("--yes", arguments->yes, "do not ask");
  drop->callback([=] { *run = [=] { return RunDrop(*context, arguments->tenant, arguments->yes); }; });
}

void AddOfflineCommands(CLI::App* app, const Context* context, Arguments* arguments, std::function<int()>* run) {
  CLI::App* policy = app->add_subcommand("policy", "work with policy manifests; needs no daemon");
  policy->require_subcommand(1);
  CLI::App* validate = policy->add_subcommand("validate", "say every problem of a manifest or a folder of them");
  validate
      ->add_option("path", arguments->path,
                   "a file, or a folder of *.yaml and *.yml; its subfolders are not looked into")
      ->required()
      ->type_name("FILE|DIR");
  validate
      ->add_option("--config", arguments->config,
                   "configuration of the node it is meant for: whether it fits there (without: whether it fits any)")
      ->type_name("FILE");
  validate->callback([=] { *run = [=] { return RunPolicyValidate(*context, arguments->path, arguments->config); }; });
  CLI::App* doctor =
      app->add_subcommand("doctor", "check machine, configuration and daemon; each finding with its fix");
  doctor->add_option("--config", arguments->config, "also check what this configuration needs")->type_name("FILE");
  doctor->callback([=] { *run = [=] { return RunDoctor(*context, arguments->config); }; });
}

void AddSimulate(CLI::App* app, const Context* context, SimulateArguments* simulate, std::function<int()>* run) {
  CLI::App* sub = app->add_subcommand(
      "simulate",
      "replay a request trace against a policy folder; needs no daemon\n\n"
      "Runs the engine of the daemon on the time of the trace, without bytes and with devices that take no time: it\n"
      "answers what would be found, evicted and refused at a capacity, never how fast. The trace is split over the\n"
      "tenants of the policy: a conversation (told by its second block) stays with one tenant, and the tenants get\n"
      "conversations in proportion to their weights, or to --split.");
  sub->add_option("--trace", simulate->trace, "conversation | synthetic | a file of JSON lines, plain or gzip")
      ->capture_default_str();
  sub->add_option("--policy", simulate->policy, "folder of TenantKVPolicy manifests")->required()->type_name("DIR");
  sub->add_option("--capacity", simulate->capacity,
                  "of the node, as dram=64Gi,nvme=1Ti, less the tier that --sweep is of");
  sub->add_option("--block-kib", simulate->block_kib,
                  "KiB of KV cache that a block of 512 tokens needs: 512 x what your model needs for a token")
      ->check(CLI::Range(1, 32768))
      ->capture_default_str();
  sub->add_option("--split", simulate->split,
                  "shares of the trace, one a tenant in the order of their names, as 40,30,20,10 [their weights]");
  sub->add_option("--sweep", simulate->sweep,
                  "one run a size, as dram=1Gi,2Gi,4Gi; of the other tier the node has what --capacity says, or none");
  const std::vector<std::string> orders(policy::kEvictionNames.begin(), policy::kEvictionNames.end());
  sub->add_option("--eviction", simulate->eviction,
                  absl::StrCat(absl::StrJoin(orders, " | "), ": the eviction order of the daemon"))
      ->capture_default_str();
  sub->add_option("--requests", simulate->requests, "only the first N requests (0: all)")
      ->check(CLI::Range(0, 1'000'000'000));
  sub->add_option("--plot", simulate->plot, "also draw the sweep: hit rate by capacity, as SVG")->type_name("FILE.svg");
  sub->callback([=] { *run = [=] { return RunSimulate(*context, *simulate); }; });
}

int Main(int argc, char** argv) {
  CLI::App app{
      "kvartalctl: the admin's command line for kvartald.\n\n"
      "Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 asked wrongly."};
  app.set_version_flag("--version", std::string("kvartalctl ") + KVARTAL_VERSION);
  Context context;
  Arguments arguments;
  SimulateArguments simulate;
  std::function<int()> run;
  CLI::Option* socket =
      app.add_option("--socket", context.socket,
                     std::string("the daemon's admin socket [$KVARTAL_ADMIN_SOCKET, else ") + kDefaultSocket + "]");
  socket->envname("KVARTAL_ADMIN_SOCKET")->type_name("PATH");
  const std::map<std::string, OutputFormat> formats = {{"table", OutputFormat::kTable},
                                                       {"json", OutputFormat::kJson},
                                                       {"yaml", OutputFormat::kYaml},
                                                       {"csv", OutputFormat::kCsv}};
  std::string format = "table";
  app.add_option("--output", format, "table (human sizes), json or yaml (exact numbers), of simulate also csv [table]")
      ->check(command_line::OneOf({"table", "json", "yaml", "csv"}))
      ->type_name("FORMAT");
  app.fallthrough();
  app.require_subcommand(1);
  AddNodeCommands(&app, &context, &run);
  AddTenantCommands(&app, &context, &arguments, &run);
  AddOfflineCommands(&app, &context, &arguments, &run);
  AddSimulate(&app, &context, &simulate, &run);
  app.allow_extras();  // and told below: the library would only say that a subcommand is required
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::string unknown = command_line::UnknownCommand(app);
    if (!unknown.empty()) return Complain(unknown, kExitUsage);
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (const std::string strange = command_line::StrangeWord(app); !strange.empty())
    return Complain(strange, kExitUsage);
  context.output = formats.at(format);
  if (context.output == OutputFormat::kCsv && !app.got_subcommand("simulate"))
    return Complain("--output csv is for simulate; here there are: table, json, yaml", kExitUsage);
  context.socket_given = socket->count() > 0 || std::getenv("KVARTAL_ADMIN_SOCKET") != nullptr;
  if (!context.socket_given) context.socket = kDefaultSocket;
  return run();
}

}  // namespace
}  // namespace kvartal::ctl

int main(int argc, char** argv) { return kvartal::ctl::Main(argc, argv); }
