/* See entries.go. Each function branches to the real one with all arguments as they were. */
	.text
	.type gs_nvml_pass, %function
gs_nvml_pass: /* x16: the name */
	.cfi_startproc
	stp x29, x30, [sp, #-96]!
	.cfi_def_cfa_offset 96
	.cfi_offset 29, -96
	.cfi_offset 30, -88
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	str x8, [sp, #80]
	mov x0, x16
	bl gs_nvml_entry
	mov x16, x0
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [sp, #32]
	ldp x4, x5, [sp, #48]
	ldp x6, x7, [sp, #64]
	ldr x8, [sp, #80]
	ldp x29, x30, [sp], #96
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	cbz x16, 1f
	br x16
1:	mov w0, #13 /* NVML_ERROR_FUNCTION_NOT_FOUND */
	ret
	.cfi_endproc
	.size gs_nvml_pass, . - gs_nvml_pass

	.macro entry name
	.globl \name
	.hidden \name
	.type \name, %function
\name:
	.cfi_startproc
	adrp x16, .Lname_\name
	add x16, x16, :lo12:.Lname_\name
	b gs_nvml_pass
	.cfi_endproc
	.size \name, . - \name
	.pushsection .rodata
.Lname_\name:
	.asciz "\name"
	.popsection
	.endm

#define ENTRY(name) entry name
#include "entries_gen.h"

	.section .note.GNU-stack, "", %progbits
