// Questions about whole languages, answered by walking derivatives. Each walk counts its steps.
#include <algorithm>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>

#include "grammar/expression/expression.h"

namespace lfm2::grammar {

bool Expressions::possible(Expr expr) {
  const Possible known = node(expr).possible;
  if (known != Possible::kUnknown) return known == Possible::kYes;
  const bool found = compute_possible(Node(node(expr)), expr);
  nodes_[id(expr)].possible = found ? Possible::kYes : Possible::kNo;
  return found;
}

bool Expressions::compute_possible(Node node, Expr expr) {
  charge(1);
  switch (node.kind) {
    case Kind::kConcat:
      for (; node.kind == Kind::kConcat; node = nodes_[node.b]) {
        if (!possible(Expr{node.a})) return false;
        if (nodes_[node.b].kind != Kind::kConcat) return possible(Expr{node.b});
        charge(1);
      }
      return true;
    case Kind::kEither: {
      const std::vector<uint32_t> parts = parts_of(node);
      return std::ranges::any_of(parts, [&](uint32_t part) { return possible(Expr{part}); });
    }
    case Kind::kRepeat:
      return possible(Expr{node.a});  // what may be left out is known to be possible
    default:
      return search(expr);
  }
}

// Looks for a text, first where the least is known to be missing (min_length). Whoever is on the way to a text is
// possible; without any text, all that was met is not.
bool Expressions::search(Expr start) {
  using Place = std::tuple<uint32_t, uint32_t, uint32_t>;  // bytes missing at least, order of arrival, node
  std::priority_queue<Place, std::vector<Place>, std::greater<>> open;
  std::unordered_map<uint32_t, uint32_t> came_from{{id(start), id(start)}};
  const auto mark_way = [&](uint32_t place) {
    for (;; place = came_from.at(place)) {
      nodes_[place].possible = Possible::kYes;
      if (place == id(start)) return;
    }
  };
  uint32_t arrivals = 0;
  for (open.emplace(0, 0, id(start)); !open.empty();) {
    const uint32_t place = std::get<2>(open.top());
    open.pop();
    // A copy: further partitions move the table.
    const auto bytes = representatives(Expr{place});
    for (const uint8_t byte : std::vector<uint8_t>(bytes.begin(), bytes.end())) {
      charge(1);
      const uint32_t next = id(derivative(Expr{place}, byte));
      if (nodes_[next].possible == Possible::kNo || !came_from.try_emplace(next, place).second) continue;
      if (nodes_[next].possible == Possible::kYes) {
        mark_way(next);
        return true;
      }
      open.emplace(nodes_[next].min_length, ++arrivals, next);
    }
  }
  for (const auto& [place, before] : came_from) nodes_[place].possible = Possible::kNo;
  return false;
}

bool Expressions::begins(Expr whole, Expr beginnings) {
  if (!possible(beginnings)) return true;
  if (!possible(whole)) return false;
  std::vector<std::pair<Expr, Expr>> open{{whole, beginnings}};
  std::set<std::pair<Expr, Expr>> seen(open.begin(), open.end());
  while (!open.empty()) {
    const auto [text, beginning] = open.back();
    open.pop_back();
    const PartitionId classes = classes_.meet(partition(text), partition(beginning));
    const auto bytes = classes_.representatives(classes);
    for (const uint8_t byte : std::vector<uint8_t>(bytes.begin(), bytes.end())) {
      charge(1);
      const Expr next_beginning = derivative(beginning, byte);
      if (!possible(next_beginning)) continue;
      const Expr next = derivative(text, byte);
      if (!possible(next)) return false;
      if (next == next_beginning || next == anything()) continue;
      if (seen.emplace(next, next_beginning).second) open.emplace_back(next, next_beginning);
    }
  }
  return true;
}

}  // namespace lfm2::grammar
