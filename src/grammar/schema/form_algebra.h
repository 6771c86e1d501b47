// Intersections and unions of forms. The values inside of lists and objects are intersected by their numbers alone.
#pragma once

#include <optional>
#include <string>

#include "grammar/schema/set_table.h"
#include "grammar/schema/value_form.h"

namespace lfm2::grammar {

class FormAlgebra {
 public:
  // Knows of sets that they are empty, where it is cheap to know. False says nothing.
  class Emptiness {
   public:
    virtual ~Emptiness() = default;
    virtual bool surely_empty(SetId set) = 0;
  };

  FormAlgebra(SetTable& sets, Expressions& expressions, Emptiness& emptiness)
      : sets_(sets), expressions_(expressions), emptiness_(emptiness) {}

  Form everything() const;
  ListShape any_list() const { return {.prefix = {}, .rest = sets_.whole(), .contains = {}}; }
  ObjectShape any_object() const;
  // All values but texts, numbers, lists or objects, which are those of `part`.
  Form with(TextForm part) const;
  Form with(std::vector<NumberPart> part) const;
  Form with(std::vector<ListShape> part) const;
  Form with(std::vector<ObjectShape> part) const;

  // Refusal, without pointer, for more than 1,024 lists or objects or 10,000 numbers in one form,
  // or 100,000 combinations in all.
  Form intersection(const Form& first, const Form& second);
  void unite(Form& whole, Form&& part);

  // Unites many forms in their order. They are united in pairs of the same age, so that none is copied for each other.
  class Union {
   public:
    explicit Union(FormAlgebra& algebra) : algebra_(algebra) {}
    void add(Form part);
    Form whole() &&;

   private:
    struct Part {
      Form form;
      size_t count;  // of forms in it
    };
    FormAlgebra& algebra_;
    std::vector<Part> parts_;  // each of more forms than the next
  };

  // What the shape says about a property that it does not list.
  SetId rest_value(const ObjectShape& shape, const std::string& name);
  bool possible(const TextSet& set);

 private:
  std::optional<NumberPart> intersection(const NumberPart& first, const NumberPart& second);
  std::optional<ListShape> intersection(const ListShape& first, const ListShape& second);
  std::optional<ObjectShape> intersection(const ObjectShape& first, const ObjectShape& second);
  std::vector<ObjectShape::Keys> rest(const ObjectShape& first, const ObjectShape& second);
  bool settle(ObjectShape& shape);
  template <class Part>
  std::vector<Part> products(const std::vector<Part>& first, const std::vector<Part>& second);
  // Counts the work of all intersections. Refusal where it is too much.
  void charge(size_t steps);
  // Their intersection; nothing() also where only a look into it shows that it is empty.
  SetId both(SetId first, SetId second);

  SetTable& sets_;
  Expressions& expressions_;
  Emptiness& emptiness_;
  size_t made_ = 0, steps_ = 0;
};

}  // namespace lfm2::grammar
