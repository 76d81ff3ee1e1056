#include "vocabulary/foreign_ops.h"

#include <infeng/extension/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

namespace infeng {
namespace {

constexpr size_t kMostOps = 1024;  // of all libraries of a process
constexpr size_t kMostName = 64;

// An op with the memory that its kind points into.
struct Brought {
  std::string name;
  std::vector<std::string> names;  // of its operands
  std::vector<Operand> operands;
  OpKind kind{};
};

// A deque, because callers keep pointers to its elements.
struct All {
  std::mutex mutex;
  std::deque<Brought> ops;
};

All& all() {
  static auto& all = *new All;
  return all;
}

// Whether a name is a small letter and then small letters, digits and _.
bool is_word(const char* name) {
  if (name == nullptr || *name < 'a' || *name > 'z') return false;
  const size_t length = strnlen(name, kMostName + 1);
  return length <= kMostName && std::all_of(name, name + length, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

struct Field {
  size_t bytes;
  size_t align;
};

Field field_of(uint32_t kind) {
  if (kind == INFENG_OPERAND_SCALAR) return {sizeof(float), alignof(float)};
  if (kind == INFENG_OPERAND_ROW_INDEX) return {sizeof(const int32_t*), alignof(const int32_t*)};
  return {sizeof(infeng_tensor), alignof(infeng_tensor)};
}

// Takes the fields of an args struct one by one. Each lies behind infeng_args, within the struct, and apart from
// others.
class Layout {
 public:
  explicit Layout(uint32_t size) : size_(size) {}

  std::string take(const char* name, uint32_t offset, const Field& field) {
    if (offset % field.align != 0) return joined("its ", name, " at ", offset, " is not aligned to ", field.align);
    if (offset < sizeof(infeng_args) || offset > size_ || size_ - offset < field.bytes) {
      return joined("its ", name, " at ", offset, " lies outside of the fields of its arguments, ", sizeof(infeng_args),
                    " to ", size_);
    }
    for (const auto& [begin, end] : taken_) {
      if (offset < end && begin < offset + field.bytes) return joined("its ", name, " overlaps another operand");
    }
    taken_.emplace_back(offset, offset + field.bytes);
    return "";
  }

 private:
  size_t size_;
  std::vector<std::pair<size_t, size_t>> taken_;
};

// Reads one operand. Returns why it cannot be used, "" if it can.
std::string read_operand(const infeng_operand& given, Brought& op, Layout& layout) {
  const auto has = [&](auto member, auto value) { return std::ranges::count(op.operands, value, member) > 0; };
  if (!is_word(given.name)) return joined("operand ", op.names.size(), " has no name of small letters, digits and _");
  const std::string name = given.name;
  if (std::ranges::count(op.names, name) > 0) return joined("two operands are called ", name);
  if (given.kind > INFENG_OPERAND_ROW_INDEX)
    return joined("its ", name, " is of kind ", given.kind, ", which is unknown");
  const auto kind = static_cast<OperandKind>(given.kind);
  if (op.operands.empty() && kind != OperandKind::rows) return joined("its first operand, ", name, ", is not rows");
  if (kind == OperandKind::row_index && has(&Operand::kind, kind)) return "it has two row indices";
  if (kind == OperandKind::scalar && !std::isfinite(given.value)) return joined("its ", name, " has no finite value");
  if (std::string fault = layout.take(given.name, given.offset, field_of(given.kind)); !fault.empty()) return fault;
  op.names.push_back(name);
  op.operands.push_back({nullptr, kind, given.offset, kind == OperandKind::scalar ? given.value : 0});
  return "";
}

std::string read_operands(const infeng_op& given, Brought& op) {
  if (given.operand_count < 1 || given.operand_count > INFENG_MOST_OPERANDS || given.operands == nullptr) {
    return joined("it has ", given.operand_count, " operands, possible are 1 to ", int{INFENG_MOST_OPERANDS});
  }
  if (given.operand_stride < sizeof(infeng_operand) || given.operand_stride > kMostStruct || given.operand_stride % 8) {
    return joined("its operands lie ", given.operand_stride, " bytes apart, an infeng_operand has ",
                  sizeof(infeng_operand));
  }
  if (given.args_size < sizeof(infeng_args) || given.args_size > INFENG_MOST_ARGS || given.args_size % 8 != 0) {
    return joined("its arguments have ", given.args_size, " bytes, possible are multiples of 8 up to ",
                  int{INFENG_MOST_ARGS});
  }
  Layout layout(given.args_size);
  const auto* bytes = reinterpret_cast<const char*>(given.operands);
  for (uint32_t i = 0; i < given.operand_count; ++i) {
    const auto& operand = *reinterpret_cast<const infeng_operand*>(bytes + size_t{i} * given.operand_stride);
    if (std::string fault = read_operand(operand, op, layout); !fault.empty()) return fault;
  }
  return layout.take("out", given.out_offset, field_of(INFENG_OPERAND_ROWS));
}

bool is_same(const Brought& a, const Brought& b) {
  const auto equal = [](const Operand& one, const Operand& other) {
    return one.kind == other.kind && one.offset == other.offset && one.value == other.value;
  };
  return a.names == b.names && a.kind.args_size == b.kind.args_size && a.kind.out_offset == b.kind.out_offset &&
         std::ranges::equal(a.operands, b.operands, equal);
}

// Points the kind at the op's own memory, which does not move any more.
void settle(Brought& op, uint32_t number) {
  for (size_t i = 0; i < op.operands.size(); ++i) op.operands[i].name = op.names[i].c_str();
  op.kind.number = number;
  op.kind.name = op.name.c_str();
  op.kind.operands = op.operands;
}

}  // namespace

Registered add_op(infeng_op* given) {
  if (given == nullptr) return {"", "it is NULL"};
  const uint32_t size = given->struct_size;
  if (size < sizeof *given || size > kMostStruct) {
    return {"", joined("it says that it has ", size, " bytes, this ABI knows ", sizeof *given)};
  }
  if (!is_word(given->name)) return {"", "it has no name of small letters, digits and _"};
  Brought op;
  op.name = given->name;
  const auto has_name = [&](const OpKind& own) { return op.name == own.name; };
  if (std::ranges::any_of(op_kinds(), has_name)) return {op.name, "it has the name of one of the engine's own ops"};
  if (std::string fault = read_operands(*given, op); !fault.empty()) return {op.name, fault};
  op.kind.args_size = given->args_size;
  op.kind.out_offset = given->out_offset;

  All& known = all();
  const std::lock_guard lock(known.mutex);
  const auto other = std::ranges::find(known.ops, op.name, &Brought::name);
  if (other != known.ops.end()) {
    if (!is_same(*other, op)) return {op.name, "another library describes an op of this name otherwise"};
    given->number = other->kind.number;
    return {op.name, ""};
  }
  if (known.ops.size() == kMostOps) return {op.name, joined("libraries describe ", kMostOps, " ops already")};
  Brought& kept = known.ops.emplace_back(std::move(op));
  settle(kept, INFENG_OP_FOREIGN + static_cast<uint32_t>(known.ops.size() - 1));
  given->number = kept.kind.number;
  return {kept.name, ""};
}

std::vector<const OpKind*> foreign_ops() {
  All& known = all();
  const std::lock_guard lock(known.mutex);
  std::vector<const OpKind*> found;
  for (const Brought& op : known.ops) found.push_back(&op.kind);
  return found;
}

}  // namespace infeng
