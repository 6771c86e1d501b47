#include "grammar/schema/schema_reader.h"

#include "base/error.h"
#include "grammar/expression/refusal.h"
#include "grammar/expression/uri.h"
#include "grammar/schema/keyword_reader.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxSchemas = 50'000;
constexpr size_t kMaxUriBytes = 4'096;               // of one identifier, resolved
constexpr size_t kMaxAllUriBytes = size_t{4} << 20;  // of all

using Kind = JsonNode::Kind;

std::optional<Draft> draft_of(std::string_view uri) {
  while (uri.ends_with('#')) uri.remove_suffix(1);
  for (const std::string_view scheme : {"http://", "https://"})
    if (uri.starts_with(scheme)) uri.remove_prefix(scheme.size());
  if (uri == "json-schema.org/draft-04/schema") return Draft::k4;
  if (uri == "json-schema.org/draft-06/schema") return Draft::k6;
  if (uri == "json-schema.org/draft-07/schema") return Draft::k7;
  if (uri == "json-schema.org/draft/2019-09/schema") return Draft::k2019;
  if (uri == "json-schema.org/draft/2020-12/schema" || uri == "json-schema.org/schema") return Draft::k2020;
  return std::nullopt;
}

std::string_view before_fragment(std::string_view uri) { return uri.substr(0, uri.find('#')); }

std::string_view fragment_of(std::string_view uri) {
  const size_t hash = uri.find('#');
  return hash == std::string_view::npos ? std::string_view{} : uri.substr(hash + 1);
}

}  // namespace

SchemaReader::SchemaReader(const JsonNode& root) : root_(root) {
  schemas_.push_back({nullptr, false, Schema{nullptr, {}}});
  schemas_.push_back({nullptr, false, Schema{nullptr, {{.kind = Assertion::Kind::kNever, .place = &root_}}}});
  find_resources();
}

const JsonNode* SchemaReader::follow(const JsonNode& root, std::string_view pointer) {
  const JsonNode* node = &root;
  while (node && !pointer.empty()) {
    pointer.remove_prefix(1);
    std::string token;
    for (; !pointer.empty() && pointer.front() != '/'; pointer.remove_prefix(1)) {
      const bool escape = pointer.starts_with("~0") || pointer.starts_with("~1");
      token += escape ? (pointer[1] == '0' ? '~' : '/') : pointer.front();
      if (escape) pointer.remove_prefix(1);
    }
    const auto [members, added] = members_.try_emplace(node);
    if (added)
      for (const JsonNode* child : node->children) members->second.emplace(child->key, child);
    const auto next = members->second.find(token);
    node = next == members->second.end() ? nullptr : next->second;
  }
  return node;
}

void SchemaReader::add_target(std::string uri, const JsonNode& node, const JsonNode& identifier) {
  uri_bytes_ += uri.size();
  if (uri.size() > kMaxUriBytes || uri_bytes_ > kMaxAllUriBytes)
    throw Refusal(node.pointer(), identifier.key, excerpt(identifier), "URIs of at most 4,096 bytes, 4 MiB in all");
  targets_.emplace(std::move(uri), &node);
}

void SchemaReader::note_identifiers(const JsonNode& node, Resource& resource) {
  if (const JsonNode* dialect = node.find("$schema"); dialect && dialect->is(Kind::kString)) {
    const std::optional<Draft> draft = draft_of(dialect->text);
    if (!draft) throw Refusal(node.pointer(), "$schema", excerpt(*dialect), "draft 4, 6, 7, 2019-09 or 2020-12");
    resource.draft = *draft;
  }
  const bool old = resource.draft <= Draft::k7;
  if (old && node.find("$ref")) return;  // its siblings are ignored
  const JsonNode* id = node.find(resource.draft == Draft::k4 ? "id" : "$id");
  if (id && id->is(Kind::kString)) {
    const std::string_view own = before_fragment(id->text), anchor = fragment_of(id->text);
    if (!own.empty()) {
      resource.base = resolve_uri(resource.base, own);
      resource.root = &node;
      add_target(resource.base, node, *id);
    }
    if (old && !anchor.empty()) add_target(resource.base + '#' + std::string(anchor), node, *id);
  }
  if (old) return;
  for (const char* name : {"$anchor", "$dynamicAnchor"})
    if (const JsonNode* anchor = node.find(name); anchor && anchor->is(Kind::kString))
      add_target(resource.base + '#' + anchor->text, node, *anchor);
  const JsonNode* recursive = node.find("$recursiveAnchor");
  dynamic_ = dynamic_ || node.find("$dynamicAnchor") || (recursive && recursive->is(Kind::kTrue));
}

// Identifiers count only where schemas are: inside of enum and of unknown keywords they are plain data.
void SchemaReader::find_resources() {
  struct Open {
    const JsonNode* node;
    const Resource* outer;
  };
  targets_.emplace("", &root_);
  const Resource unnamed{"", &root_, Draft::k2020};
  std::vector<Open> open = {{&root_, &unnamed}};
  while (!open.empty()) {
    const auto [node, outer] = open.back();
    open.pop_back();
    Resource own = *outer;
    note_identifiers(*node, own);
    const bool is_new = own.root != outer->root || own.draft != outer->draft || node == &root_;
    const Resource* resource = is_new ? &resources_.insert_or_assign(node, std::move(own)).first->second : outer;
    for (const JsonNode* child : node->children) {
      if (!node->is(Kind::kObject)) break;
      const SchemasIn in = schemas_in(child->key);
      if (in == SchemasIn::kValue || (in == SchemasIn::kValueOrList && child->is(Kind::kObject)))
        open.push_back({child, resource});
      else if (in == SchemasIn::kMembers || (in == SchemasIn::kValueOrList && child->is(Kind::kArray)))
        for (const JsonNode* schema : child->children) open.push_back({schema, resource});
    }
  }
}

const SchemaReader::Resource& SchemaReader::resource_of(const JsonNode& node) const {
  for (const JsonNode* at = &node; at; at = at->parent)
    if (const auto found = resources_.find(at); found != resources_.end()) return found->second;
  throw Error(ExitCode::kSoftware, "a schema without a resource");
}

SchemaId SchemaReader::target_of(const JsonNode& reference) {
  if (!reference.is(Kind::kString)) throw Refusal(reference.parent->pointer(), "$ref", excerpt(reference), "a text");
  const Resource& from = resource_of(reference);
  const std::string_view own = before_fragment(reference.text);
  const std::string fragment = decode_percent(fragment_of(reference.text));
  const std::string uri = own.empty() ? from.base : resolve_uri(from.base, own);
  const auto root = targets_.find(uri);
  const JsonNode* target = own.empty() ? from.root : root != targets_.end() ? root->second : nullptr;
  if (target && fragment.starts_with('/')) {
    target = follow(*target, fragment);
  } else if (!fragment.empty()) {
    const auto anchor = targets_.find(uri + '#' + fragment);
    target = anchor != targets_.end() ? anchor->second : nullptr;
  }
  if (!target) throw Refusal(reference.parent->pointer(), "$ref", excerpt(reference), "a schema within this document");
  return schema_of(*target);
}

SchemaId SchemaReader::add(const JsonNode* node, bool constant) {
  if (schemas_.size() >= kMaxSchemas)
    throw Refusal(node->pointer(), "", "a schema of more than 50,000 schemas", "a smaller one");
  schemas_.push_back({node, constant, std::nullopt});
  return static_cast<SchemaId>(schemas_.size() - 1);
}

SchemaId SchemaReader::schema_of(const JsonNode& node) {
  if (node.is(Kind::kTrue)) return anything();
  if (node.is(Kind::kFalse)) return never();
  const auto [at, added] = ids_.try_emplace(&node);
  if (added) at->second = add(&node, false);
  return at->second;
}

SchemaId SchemaReader::constant(const JsonNode& value) {
  const auto [at, added] = constants_.try_emplace(&value);
  if (added) at->second = add(&value, true);
  return at->second;
}

const Schema& SchemaReader::at(SchemaId id) {
  Entry& entry = schemas_[static_cast<size_t>(id)];
  if (!entry.schema) {
    if (entry.constant)
      entry.schema =
          Schema{entry.node, {{.kind = Assertion::Kind::kValues, .place = entry.node, .values = {entry.node}}}};
    else
      entry.schema = KeywordReader(*this, *entry.node, resource_of(*entry.node).draft).read();
  }
  return *entry.schema;
}

}  // namespace lfm2::grammar
