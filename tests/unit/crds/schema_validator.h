// Judges an object by a CustomResourceDefinition, as the API server would: types, bounds, patterns, unknown keys and
// the validation rules. An oracle of its own: it shares nothing with the reader of manifests but the YAML tree.
#pragma once

#include <string>
#include <vector>

#include "crds/yaml_reader.h"

namespace kvartal::crds {

// What is wrong with `object`, each as "path: reason"; empty when the schema takes it.
std::vector<std::string> JudgeBySchema(const YamlNode& crd, const YamlNode& object);

}  // namespace kvartal::crds
