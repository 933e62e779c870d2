// What a command line says of words it does not know, in the words of the programs and not of the library. Pure.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvartal::command_line {

// A word where a command should be, told with the commands there are. "" when that is not what is wrong. The app allows
// extras: else the library would only say that a subcommand is required.
inline std::string UnknownCommand(const CLI::App& app) {
  const std::vector<std::string> strange = app.remaining(true);
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::App* command : at->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    names.push_back(command->get_name());
  }
  if (strange.empty() || names.empty()) return "";
  return absl::StrCat("there is no command '", strange.front(), "'; there are: ", absl::StrJoin(names, ", "));
}

// A word that no command takes. "" when there is none.
inline std::string StrangeWord(const CLI::App& app) {
  const std::vector<std::string> strange = app.remaining(true);
  if (strange.empty()) return "";
  return absl::StrCat("'", strange.front(), "' means nothing here; add --help to see what does");
}

// One of a few words.
inline CLI::Validator OneOf(std::vector<std::string> names) {
  return CLI::Validator(
      [names = std::move(names)](const std::string& given) {
        if (std::find(names.begin(), names.end(), given) != names.end()) return std::string();
        return absl::StrCat("'", given, "' is not known; there are: ", absl::StrJoin(names, ", "));
      },
      "");
}

}  // namespace kvartal::command_line
