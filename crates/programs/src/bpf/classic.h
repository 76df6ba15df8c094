/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * A filter expression, run on a frame in the driver: libpcap's program as it is, by an
 * interpreter. So there is no second meaning of the expression.
 *
 * Jumps of classic BPF only go forward, so as many steps as it has instructions are
 * enough for every program. It answers as libpcap's own interpreter does; a test
 * compares the two.
 */
#ifndef PLIMSOLL_CLASSIC_H
#define PLIMSOLL_CLASSIC_H

#include <linux/bpf.h>
#include <linux/bpf_common.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

/* Words of a program's memory (BPF_MEMWORDS). */
#define MEMORY_WORDS 16
/* Of linux/filter.h and of libpcap: shared by all. */
#define INSTRUCTION_RVAL(code) ((code) & 0x18)
#define INSTRUCTION_MISC(code) ((code) & 0xf8)
/* No frame is longer than what the verifier lets a program look at. */
#define PLACE_MAX 0x7fff

#define GO_ON 0
#define STOP 1

/* Of classic BPF, as struct sock_filter. */
struct instruction {
	__u16 code;
	__u8 jump_true;
	__u8 jump_false;
	__u32 operand;
};

/* Instructions of filter; 0: there is none. */
const volatile __u32 filter_length;

/* User space says how many. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct instruction);
} filter SEC(".maps");

struct machine {
	struct xdp_md *frame;
	__u32 place;
	__u32 accumulator;
	__u32 index;
	__u32 memory[MEMORY_WORDS];
	__u32 accepts;
};

/* Reads bytes of the frame; false: it does not have them. */
static __always_inline bool read(const struct machine *machine, __u32 at, __u32 bytes,
				 __u32 *value)
{
	const __u8 *data = (void *)(long)machine->frame->data;
	const __u8 *end = (void *)(long)machine->frame->data_end;

	if (at > PLACE_MAX)
		return false;
	data += at;
	if (data + bytes > end)
		return false;
	if (bytes == 1)
		*value = data[0];
	else if (bytes == 2)
		*value = (__u32)data[0] << 8 | data[1];
	else
		*value = (__u32)data[0] << 24 | (__u32)data[1] << 16 | (__u32)data[2] << 8 |
			 data[3];
	return true;
}

static __always_inline bool read_sized(const struct machine *machine, __u16 code, __u32 at,
				       __u32 *value)
{
	switch (BPF_SIZE(code)) {
	case BPF_W:
		return read(machine, at, 4, value);
	case BPF_H:
		return read(machine, at, 2, value);
	case BPF_B:
		return read(machine, at, 1, value);
	default:
		return false;
	}
}

/* What BPF_LD and BPF_LDX load; false: the program ends, and refuses. */
static __always_inline bool load(const struct machine *machine, const struct instruction *one,
				 __u32 *value)
{
	__u32 operand = one->operand;

	switch (BPF_MODE(one->code)) {
	case BPF_IMM:
		*value = operand;
		return true;
	case BPF_ABS:
		return read_sized(machine, one->code, operand, value);
	case BPF_IND:
		if (operand + machine->index < operand)
			return false;
		return read_sized(machine, one->code, operand + machine->index, value);
	case BPF_MEM:
		*value = machine->memory[operand & (MEMORY_WORDS - 1)];
		return true;
	case BPF_LEN:
		*value = machine->frame->data_end - machine->frame->data;
		return true;
	case BPF_MSH:
		/* The length of an IPv4 header. */
		if (!read(machine, operand, 1, value))
			return false;
		*value = (*value & 0xf) << 2;
		return true;
	default:
		return false;
	}
}

static __always_inline bool compute(struct machine *machine, __u16 code, __u32 right)
{
	__u32 left = machine->accumulator;

	switch (BPF_OP(code)) {
	case BPF_ADD:
		left += right;
		break;
	case BPF_SUB:
		left -= right;
		break;
	case BPF_MUL:
		left *= right;
		break;
	case BPF_DIV:
		if (!right)
			return false;
		left /= right;
		break;
	case BPF_MOD:
		if (!right)
			return false;
		left %= right;
		break;
	case BPF_OR:
		left |= right;
		break;
	case BPF_AND:
		left &= right;
		break;
	case BPF_XOR:
		left ^= right;
		break;
	case BPF_LSH:
		left = right < 32 ? left << right : 0;
		break;
	case BPF_RSH:
		left = right < 32 ? left >> right : 0;
		break;
	case BPF_NEG:
		left = -left;
		break;
	default:
		return false;
	}
	machine->accumulator = left;
	return true;
}

static __always_inline bool jump(struct machine *machine, const struct instruction *one,
				 __u32 right)
{
	__u32 left = machine->accumulator;
	bool holds;

	switch (BPF_OP(one->code)) {
	case BPF_JA:
		machine->place += one->operand;
		return true;
	case BPF_JEQ:
		holds = left == right;
		break;
	case BPF_JGT:
		holds = left > right;
		break;
	case BPF_JGE:
		holds = left >= right;
		break;
	case BPF_JSET:
		holds = left & right;
		break;
	default:
		return false;
	}
	machine->place += holds ? one->jump_true : one->jump_false;
	return true;
}

/* One instruction. It refuses whatever is no program of libpcap's. */
static long step(__u32 turn, struct machine *machine)
{
	__u32 place = machine->place;
	struct instruction *one;
	__u32 right;

	one = bpf_map_lookup_elem(&filter, &place);
	if (!one)
		return STOP;
	machine->place = place + 1;
	right = BPF_SRC(one->code) == BPF_X ? machine->index : one->operand;
	switch (BPF_CLASS(one->code)) {
	case BPF_LD:
		return load(machine, one, &machine->accumulator) ? GO_ON : STOP;
	case BPF_LDX:
		return load(machine, one, &machine->index) ? GO_ON : STOP;
	case BPF_ST:
		machine->memory[one->operand & (MEMORY_WORDS - 1)] = machine->accumulator;
		return GO_ON;
	case BPF_STX:
		machine->memory[one->operand & (MEMORY_WORDS - 1)] = machine->index;
		return GO_ON;
	case BPF_ALU:
		return compute(machine, one->code, right) ? GO_ON : STOP;
	case BPF_JMP:
		return jump(machine, one, right) ? GO_ON : STOP;
	case BPF_RET:
		machine->accepts = INSTRUCTION_RVAL(one->code) == 0x10 ? machine->accumulator :
									 right;
		return STOP;
	default:
		if (INSTRUCTION_MISC(one->code))
			machine->accumulator = machine->index;
		else
			machine->index = machine->accumulator;
		return GO_ON;
	}
}

/* Whether the filter accepts the frame; false if there is none. */
static __always_inline bool accepts(struct xdp_md *frame)
{
	struct machine machine = { .frame = frame };

	if (!filter_length)
		return false;
	bpf_loop(filter_length, step, &machine, 0);
	return machine.accepts;
}

#endif
