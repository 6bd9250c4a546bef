	.section .rodata
	.balign 16
	.global bpf_object_start
	.global bpf_object_end
bpf_object_start:
	.incbin OBJECT
bpf_object_end:
	.byte 0
	.section .note.GNU-stack,"",%progbits
