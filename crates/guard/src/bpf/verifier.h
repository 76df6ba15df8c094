/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* Help for the kernel's verifier: each start of a guard waits for it. */
#ifndef PLIMSOLL_VERIFIER_H
#define PLIMSOLL_VERIFIER_H

/*
 * Adds nothing to a value of 64 bits. But the verifier does not know that a number less itself
 * is nothing, so it forgets the value, and goes on once where it would go on for each that the
 * branches before have left. `any`: a number that it does not know.
 */
#define forget(value, any)                                                                    \
	({                                                                                    \
		__u64 _nothing = (any);                                                       \
		asm volatile("%0 -= %0\n%1 += %0" : "+r"(_nothing), "+r"(value));             \
	})

#endif
