/* See entries.go. Each function jumps to the real one with all arguments as they were. */
	.text
	.type gs_nvml_pass, @function
gs_nvml_pass: /* r11: the name */
	.cfi_startproc
	push %rdi
	.cfi_adjust_cfa_offset 8
	push %rsi
	.cfi_adjust_cfa_offset 8
	push %rdx
	.cfi_adjust_cfa_offset 8
	push %rcx
	.cfi_adjust_cfa_offset 8
	push %r8
	.cfi_adjust_cfa_offset 8
	push %r9
	.cfi_adjust_cfa_offset 8
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	mov %r11, %rdi
	call gs_nvml_entry
	mov %rax, %r11
	add $8, %rsp
	.cfi_adjust_cfa_offset -8
	pop %r9
	.cfi_adjust_cfa_offset -8
	pop %r8
	.cfi_adjust_cfa_offset -8
	pop %rcx
	.cfi_adjust_cfa_offset -8
	pop %rdx
	.cfi_adjust_cfa_offset -8
	pop %rsi
	.cfi_adjust_cfa_offset -8
	pop %rdi
	.cfi_adjust_cfa_offset -8
	test %r11, %r11
	jz 1f
	jmp *%r11
1:	mov $13, %eax /* NVML_ERROR_FUNCTION_NOT_FOUND */
	ret
	.cfi_endproc
	.size gs_nvml_pass, . - gs_nvml_pass

	.macro entry name
	.globl \name
	.hidden \name
	.type \name, @function
\name:
	.cfi_startproc
	lea .Lname_\name(%rip), %r11
	jmp gs_nvml_pass
	.cfi_endproc
	.size \name, . - \name
	.pushsection .rodata
.Lname_\name:
	.asciz "\name"
	.popsection
	.endm

#define ENTRY(name) entry name
#include "entries_gen.h"

	.section .note.GNU-stack, "", @progbits
